"""Schemathesis against a real server: requests made from the OpenAPI document, answers compared with it.

`python -m tests.server.schemathesis_run [cases per operation] [seed]` prints a summary.
"""

from __future__ import annotations

import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import schemathesis
from schemathesis.core.failures import AcceptedNegativeData, Failure
from schemathesis.core.parameters import ParameterLocation
from schemathesis.engine import events, from_schema
from schemathesis.openapi.checks import RejectedPositiveData

from tests.server.openapi_document import ask, fetch_document, operations
from tests.server.running import Running, running
from topics.engine.names import is_topic_name

# Topics of every kind, so that most requests find one. They stay; the requests create and delete others.
TOPICS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "synced": {"durability": "fsync"},
    "fleeting": {"durability": "ephemeral", "cap_records": 3},
    "jobs": {"type": "queue"},
    "small": {"discard": "reject", "cap_records": 2},
}
U32_MAX: Final = 2**32 - 1

# The body's limits in bytes, where a schema can only count characters.
BYTES_MAX: Final = {"tag": 256, "node": 128, "idempotency_key": 256}


@dataclass
class Summary:
    seed: int
    operations: int
    cases: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    # Deliberate leniency, see `is_meant`.
    exceptions: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        phases = ", ".join(f"{count} {phase}" for phase, count in self.cases.items())
        statuses = ", ".join(f"{count} × {status}" for status, count in sorted(self.statuses.items()))
        lines = (
            f"{self.operations} operations, {self.cases.total()} cases ({phases}), {self.checks} checks, "
            f"{len(self.failures)} failures, {self.exceptions} deliberate exceptions, seed {self.seed}\n"
            f"answers: {statuses}\n"
        )
        return lines + "".join(f"\n{title}\n{how}\n" for title, how in self.failures.items())


# The `not` of the schema in other words: values for coverage are made without a look at a `not`.
SOME_CONDITION: Final = [
    {"required": ["before_seq"], "properties": {"before_seq": {"type": "integer"}}},
    {"required": ["match"], "properties": {"match": {"type": ["string", "array"]}}},
]


def check_error_codes(document: dict[str, Any]) -> None:
    """Each failure may have the codes that the document lists for its status, and no others."""
    for _, _, operation in operations(document):
        for response in operation["responses"].values():
            codes = response.get("x-error-codes")
            if codes is not None:
                content = response["content"]["application/json"]
                only = {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}
                content["schema"] = {"allOf": [content["schema"], only]}


def run(server: Running, *, cases_max: int, seed: int) -> Summary:
    """At most `cases_max` random cases for each operation, beside examples, limits, and sequences of calls."""
    for name, topic_config in TOPICS.items():
        ask(server, "PUT", f"/v0/topics/{name}", topic_config)
    document = fetch_document(server)
    # Streams have no end, and have their own tests.
    for path in ("/v0/topics/{topic}/work", "/v0/watch/{wid}"):
        del document["paths"][path]
    check_error_codes(document)
    document["components"]["schemas"]["DeleteBody"]["anyOf"] = SOME_CONDITION
    config = schemathesis.Config.from_dict(
        {
            "seed": seed,
            "request-timeout": 60,
            "generation": {"max-examples": cases_max, "database": "none"},
            "checks": {
                # A topic may be full, which a request cannot know.
                "positive_data_acceptance": {
                    "expected-statuses": ["2xx", "401", "403", "404", "409", "422", "429"],
                },
                # A write to a deleted topic creates it again.
                "use_after_free": {"enabled": False},
                # Another request may delete what a request has created.
                "ensure_resource_availability": {"enabled": False},
            },
        }
    )
    schema = schemathesis.openapi.from_dict(document, config=config)
    schema.config.update(base_url=server.url)
    schema.hook(map_case)
    schema.hook(filter_failure)
    summary = Summary(seed, sum(len(methods) for methods in document["paths"].values()))
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            note_scenario(summary, event)
        elif isinstance(event, events.NonFatalError):
            summary.failures[f"{event.label}: {event.info.title}"] = str(event.value)
        elif isinstance(event, events.FatalError):
            raise event.exception
    return summary


def note_scenario(summary: Summary, event: events.ScenarioFinished) -> None:
    recorder = event.recorder
    summary.cases[event.phase.value] += len(recorder.cases)
    summary.exceptions += sum(recorder.filtered_failures.values())
    for interaction in recorder.interactions.values():
        if interaction.response is not None:
            summary.statuses[interaction.response.status_code] += 1
    for checks in recorder.checks.values():
        summary.checks += len(checks)
        for check in checks:
            if check.failure_info is not None:
                title = f"{event.label}: {check.name}: {check.failure_info.failure.message}"
                summary.failures.setdefault(title, check.failure_info.code_sample)


# Requests.


def map_case(context: schemathesis.HookContext, case: schemathesis.Case) -> schemathesis.Case:
    if "topic" in case.path_parameters and not is_negative(case, ParameterLocation.PATH):
        kept: list[str] = {"DELETE": [], "PUT": ["jobs", "plain"]}.get(case.method, sorted(TOPICS))
        # The same choice for the same case in every run: one in a few keeps its generated name.
        choice = zlib.crc32(repr((case.path_parameters, case.query, case.body)).encode()) % (len(kept) + 1)
        if choice < len(kept):
            case.path_parameters["topic"] = kept[choice]
        elif case.path_parameters["topic"] in TOPICS:
            case.path_parameters["topic"] += "-2"
    if isinstance(case.body, dict):
        write_whole_numbers_as_integers(case.body)
        write_whole_numbers_as_integers(case.body.get("config"))
        parts = case.body.get("parts")
        for part in parts if isinstance(parts, list) else ():
            write_whole_numbers_as_integers(part)
        wait_ms = case.body.get("wait_ms")
        if type(wait_ms) is int and 1 < wait_ms <= U32_MAX:
            # Waiting is tested elsewhere.
            case.body["wait_ms"] = 1
        if (
            case.path.endswith("/redrive")
            and type(case.body.get("rate")) is int
            and type(case.body.get("max_ms", 0)) is int
        ):
            case.body["max_ms"] = min(case.body.get("max_ms", 1), 1)
    return case


def write_whole_numbers_as_integers(members: object) -> None:
    """For a schema 1.0 is an integer, for this server it is not. Payloads stay as they are."""
    if isinstance(members, dict):
        for name, value in members.items():
            members[name] = list(map(whole, value)) if name == "seqs" and isinstance(value, list) else whole(value)


def whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Answers.


def filter_failure(
    context: schemathesis.HookContext,
    failure: Failure,
    case: schemathesis.Case,
    response: schemathesis.Response,
) -> bool:
    return not is_meant(failure, case, response)


def is_meant(failure: Failure, case: schemathesis.Case, response: schemathesis.Response) -> bool:
    """Whether the failure is a case where the contract is more lenient, or stricter, than a schema can say."""
    if isinstance(failure, AcceptedNegativeData):
        negative = {location for location in case.meta.components if is_negative(case, location)}
        # Query parameters with invalid values count as absent, and the key in the body wins over the header.
        body = case.body if isinstance(case.body, dict) else {}
        passed_over = {ParameterLocation.QUERY}
        if isinstance(body.get("idempotency_key"), str):
            passed_over.add(ParameterLocation.HEADER)
        # The config in a write to an existing topic needs the right types, and is ignored otherwise.
        if "records" in body and isinstance(body.get("config"), dict):
            dead_letter = body["config"].get("dead_letter")
            if isinstance(dead_letter, str) and not is_topic_name(dead_letter):
                passed_over.add(ParameterLocation.BODY)
        return negative <= passed_over
    if isinstance(failure, RejectedPositiveData):
        return any(stricter_rules(case, response))
    return False


def stricter_rules(case: schemathesis.Case, response: schemathesis.Response) -> Iterator[bool]:
    # The cap of a topic may be smaller than a write.
    yield response.json()["error"]["code"] == "record_too_large"
    # A request for a WebSocket needs headers of the protocol, which the operation does not list.
    yield case.path == "/v0/ws"
    # A cursor must come from the server.
    yield bool(case.query.get("cursor"))
    # A range of frames does not end before it begins.
    yield case.path.endswith("/frames") and {"from_seq", "to_seq"} <= case.query.keys()
    # The cursor of a group is at most the head of its topic.
    yield "head_seq" in response.json()["error"].get("detail", {})
    # The bytes of the header must be UTF-8.
    key = case.headers.get("Idempotency-Key", "")
    yield not key.isascii()
    if isinstance(case.body, dict):
        body = case.body
        # A queue cannot be its own dead-letter topic.
        config = body.get("config") if "records" in body else body
        yield isinstance(config, dict) and config.get("dead_letter") == case.path_parameters.get("topic")
        # Tokens are as many as seqs, or none.
        lease_ids = body.get("lease_ids")
        yield bool(lease_ids) and len(lease_ids) != len(body.get("seqs", ()))
        # A commit takes one attempt of each part.
        parts = [part["part"] for part in body.get("parts", ())]
        yield len(set(parts)) != len(parts)
        # The server's limits count bytes, a schema counts characters.
        for members in (body, *body.get("records", ())):
            for name, bytes_max in BYTES_MAX.items():
                text = members.get(name)
                yield isinstance(text, str) and len(text.encode()) > bytes_max


def is_negative(case: schemathesis.Case, location: ParameterLocation) -> bool:
    return case.meta is not None and case.meta.is_negative_at(location)


def main(cases_max: int = 100, seed: int = 20) -> int:
    with tempfile.TemporaryDirectory() as data_dir, running(data_dir) as server:
        summary = run(server, cases_max=cases_max, seed=seed)
    print(summary)
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
