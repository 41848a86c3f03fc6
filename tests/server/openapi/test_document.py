"""The OpenAPI document: complete, valid, and in agreement with the answers of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.server.clients import CLIENTS, HTTP1
from tests.server.openapi_document import ask, fetch_document, operations
from tests.server.running import Running, running
from topics.protocol import response_body
from topics.protocol.body_decoder import (
    ABORT_DECODER,
    ACK_DECODER,
    CAPTURE_DECODER,
    CLAIM_DECODER,
    COMMIT_DECODER,
    CONFIG_DECODER,
    DELETE_DECODER,
    DIFF_DECODER,
    EPOCH_DECODER,
    EXTEND_DECODER,
    GROUP_DECODER,
    MANIFEST_DECODER,
    NACK_DECODER,
    REDRIVE_DECODER,
    REPLACE_DECODER,
    ROUTER_DECODER,
    WATCH_DECODER,
)
from topics.protocol.error_codes import ERROR_CODES
from topics.protocol.response_body import (
    AccessRights,
    Acked,
    Appended,
    ChunkStaged,
    Claimed,
    Committed,
    Deleted,
    Diff,
    DiffRecord,
    EpochAborted,
    EpochCommitted,
    ErrorEnvelope,
    Extended,
    GroupDeleted,
    GroupList,
    GroupState,
    Health,
    LogCapture,
    Manifest,
    MetricsJson,
    Nacked,
    Performance,
    PutGroup,
    PutRouter,
    PutTopic,
    QueueState,
    Ready,
    Redriven,
    Router,
    RouterDeleted,
    RouterList,
    SegmentReplaced,
    ServerConfig,
    StreamsMetrics,
    TopicDeleted,
    TopicList,
    TopicSealed,
    TopicState,
    WatchCreated,
    WriterEpochs,
)
from topics.protocol.write_body import decode_stage, decode_write
from topics.server.openapi.document import examples
from topics.server.openapi.operations import OPERATIONS

SCOPES = ("read", "write", "delete", "admin")
SOME_SCOPES = [scopes for count in range(1, 5) for scopes in combinations(SCOPES, count)]


@pytest.fixture
def document(server: Running) -> dict[str, Any]:
    return fetch_document(server)


# Complete.


def test_every_endpoint_is_documented_and_nothing_else(server: Running, document: dict[str, Any]) -> None:
    routes = {(method, path): endpoint.name for method, path, endpoint in server.server.app.routes.endpoints()}
    assert set(routes) == {(method, path) for method, path, _ in operations(document)}
    assert set(routes.values()) == OPERATIONS.keys()


def test_every_documented_path_leads_to_its_endpoint(server: Running, document: dict[str, Any]) -> None:
    for method, path, _ in operations(document):
        named = path.replace("{topic}", "parcels").replace("{router}", "r").replace("{wid}", "wid_1")
        found = server.server.app.routes.match(named.encode())
        assert method.encode() in found.endpoints


def test_every_member_of_every_body_is_described(document: dict[str, Any]) -> None:
    missing = [
        f"{shape}.{member}"
        for shape, schema in document["components"]["schemas"].items()
        for member, described in schema.get("properties", {}).items()
        if not described.get("description")
    ]
    assert missing == []


def test_every_example_belongs_to_an_operation_and_is_shown(document: dict[str, Any]) -> None:
    shown: dict[str, dict[str, Any]] = {}
    for _, _, operation in operations(document):
        name = operation["operationId"]
        request = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if "example" in request:
            shown.setdefault(name, {})["request"] = request["example"]
        for status, response in operation["responses"].items():
            content = response.get("content", {}).get("application/json", {})
            if "example" in content:
                shown.setdefault(name, {})[status] = content["example"]
    # Probes have a second path.
    assert {name: shown[name] for name in examples()} == examples()


def test_every_error_code_is_in_the_catalogue_of_the_document(document: dict[str, Any]) -> None:
    assert [entry["code"] for entry in document["x-error-codes"]] == [entry.code for entry in ERROR_CODES]


def test_the_document_passes_the_validator_of_the_standard(document: dict[str, Any]) -> None:
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)


# Correct.


def test_examples_of_requests_are_accepted_by_the_decoders() -> None:
    decoders = {
        "put_topic": CONFIG_DECODER.decode,
        "diff": DIFF_DECODER.decode,
        "manifest": MANIFEST_DECODER.decode,
        "capture": CAPTURE_DECODER.decode,
        "replace_segment": REPLACE_DECODER.decode,
        "delete": DELETE_DECODER.decode,
        "append": decode_write,
        "claim": CLAIM_DECODER.decode,
        "ack": ACK_DECODER.decode,
        "nack": NACK_DECODER.decode,
        "extend": EXTEND_DECODER.decode,
        "redrive": REDRIVE_DECODER.decode,
        "put_router": ROUTER_DECODER.decode,
        "put_group": GROUP_DECODER.decode,
        "commit_group": COMMIT_DECODER.decode,
        "stage": decode_stage,
        "commit_epoch": EPOCH_DECODER.decode,
        "abort_epoch": ABORT_DECODER.decode,
        "watch": WATCH_DECODER.decode,
    }
    for name, operation in OPERATIONS.items():
        if operation.body is not None:
            decoders[name](json.dumps(examples()[name]["request"]).encode())


def test_examples_of_answers_fit_their_structs() -> None:
    for name, operation in OPERATIONS.items():
        for status, reply in operation.replies.items():
            example = examples().get(name, {}).get(str(status))
            if reply.shape is not None and example is not None:
                text = json.dumps(example, separators=(",", ":")).encode()
                # In the order of the wire.
                assert msgspec.json.encode(read_strictly(reply.shape, text)) == text


def test_limits_of_the_settings_stand_in_the_document(tmp_path: Path) -> None:
    with running(tmp_path, max_batch_records=7, max_tag_bytes=11, max_limit=5, max_body_bytes=4096) as server:
        document = fetch_document(server)
    schemas = document["components"]["schemas"]
    assert schemas["WriteBody"]["properties"]["records"]["maxItems"] == 7
    assert schemas["RecordBody"]["properties"]["tag"]["anyOf"][0]["maxLength"] == 11
    assert schemas["DiffBody"]["properties"]["limit"]["x-clamped-to"] == 5
    assert "4096 bytes" in document["paths"]["/v0/topics/{topic}"]["post"]["requestBody"]["description"]


def test_payloads_are_any_json_and_seqs_have_64_bits(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["RecordBody"]["properties"]["data"].keys() == {"description"}
    assert schemas["DiffRecord"]["properties"]["data"].keys() == {"description"}
    seq = schemas["DiffRecord"]["properties"]["$seq"]
    assert (seq["type"], seq["minimum"], seq["maximum"]) == ("integer", 0, 2**64 - 1)


@pytest.mark.parametrize(
    ("body", "is_valid"),
    [
        ({"before_seq": 1}, True),
        ({"match": "a*"}, True),
        ({"match": ["tag", "Eq", "a"]}, True),
        ({"match": ["tag", "Glob", "a*"], "before_seq": None}, True),
        ({}, False),
        ({"before_seq": None, "match": None}, False),
        ({"match": ["tag", "Glob", "a"]}, False),
        ({"match": ["tag", "eq", "a"]}, False),
        ({"match": ["tag", "Eq"]}, False),
        ({"match": ["tag", "Eq", "a", "b"]}, False),
        ({"before_seq": -1}, False),
    ],
)
def test_schema_and_server_agree_about_deletes(
    server: Running, document: dict[str, Any], body: dict[str, Any], is_valid: bool
) -> None:
    schema = {"$ref": "#/components/schemas/DeleteBody", "components": document["components"]}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) is is_valid
    # The topic is looked up only after the body is accepted.
    assert ask(server, "POST", "/v0/topics/nowhere/delete", body).status == (404 if is_valid else 400)


# Served.


def test_the_document_is_there_before_the_log_is(tmp_path: Path) -> None:
    with running(tmp_path, recovers=False) as server:
        assert fetch_document(server)["openapi"].startswith("3.1")
        assert ask(server, "GET", "/v0/topics").refusal == (503, "not_ready")


def test_the_document_needs_a_key_and_no_scope(tmp_path: Path) -> None:
    with running(tmp_path, keys="k:delete:acme.") as server:
        assert ask(server, "GET", "/v0/openapi.json").refusal == (401, "unauthorized")
        document = fetch_document(server, {"authorization": "Bearer k"})
    assert document["paths"]["/v0/openapi.json"]["get"]["security"] == [{"bearer": []}]
    assert document["paths"]["/v0/health"]["get"]["security"] == []


def test_a_head_request_tells_how_long_the_document_is(server: Running) -> None:
    head, whole = ask(server, "HEAD", "/v0/openapi.json"), ask(server, "GET", "/v0/openapi.json")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.body))


def test_scopes_of_the_document_are_what_a_key_needs(tmp_path: Path) -> None:
    """A key with exactly these scopes passes, a key that lacks one of them does not."""
    with running(tmp_path, keys=",".join(f"{'-'.join(scopes)}:{'+'.join(scopes)}" for scopes in SOME_SCOPES)) as server:

        def status_with(scopes: Iterable[str], method: str, path: str) -> int:
            secret = "-".join(scope for scope in SCOPES if scope in scopes)
            return ask(server, method, path, {}, {"authorization": f"Bearer {secret}"}).status

        def status_without_key(method: str, path: str, number: int) -> int:
            # From an address of its own: failed attempts from one address are answered later and later.
            with CLIENTS[HTTP1](server.host, server.port, f"127.0.1.{number}") as client:
                return client.request(method, path, {}).status

        document = fetch_document(server, {"authorization": "Bearer read"})
        for number, (method, path, operation) in enumerate(operations(document), 1):
            path = path.replace("{topic}", "parcels")
            needed = operation["x-scopes"]
            assert status_with(needed or ["read"], method, path) not in (401, 403), path
            for scope in needed:
                assert status_with(set(SCOPES) - {scope}, method, path) == 403, path
            assert (status_without_key(method, path, number) == 401) is bool(operation["security"]), path


# Structs and handlers.


def read_strictly(shape: type[msgspec.Struct], raw: bytes) -> Any:
    """The answer as its struct; fails on members that the struct does not know, at any depth."""
    decoded = msgspec.json.decode(raw, type=shape)
    assert json.loads(msgspec.json.encode(decoded)) == json.loads(raw)
    return decoded


async def checkpointed(server: Running) -> None:
    """Puts all records into segments."""
    opened = server.server.app.opened
    assert opened is not None
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    opened.checkpointer.start(done.set_result)
    assert await done is None


def test_answers_have_the_members_of_their_structs_and_no_others(server: Running) -> None:
    seen: set[str] = set()

    def expect(shape: type[msgspec.Struct], status: int, method: str, path: str, *rest: Any) -> Any:
        sent = ask(server, method, path, *rest)
        assert sent.status == status, sent.body
        answer = read_strictly(shape, sent.body)
        seen.update(set_members(answer))
        return answer

    def set_members(value: Any) -> Iterator[str]:
        if isinstance(value, list):
            for item in value:
                yield from set_members(item)
        elif isinstance(value, msgspec.Struct):
            for name in value.__struct_fields__:
                member = getattr(value, name)
                if member is not msgspec.UNSET and member is not None:
                    yield f"{type(value).__name__}.{name}"
                    yield from set_members(member)

    topic = "/v0/topics/answers"
    expect(PutTopic, 201, "PUT", topic, {"cap_records": 2, "durability": "fsync", "priority": 3, "dead_letter": "dead"})
    expect(PutTopic, 200, "PUT", topic, {"cap_records": 2, "priority": 3, "dead_letter": "dead"})
    queue = "/v0/topics/answers-queue"
    expect(PutTopic, 201, "PUT", queue, {"type": "queue"})
    write = {"records": [{"data": {"n": 1}, "tag": "a", "node": "x", "meta": {}}, {"data": None}, {"data": 3}]}
    assert expect(Appended, 200, "POST", topic, write | {"idempotency_key": "k"}).last_seq == 3
    assert expect(Appended, 200, "POST", topic, write | {"idempotency_key": "k"}).deduped
    config = {"config": {"durabilty": "fsync"}}
    expect(Appended, 200, "POST", f"{topic}?return_seqs=false", {"records": [write["records"][0]] * 2} | config)
    page = expect(Diff, 200, "POST", f"{topic}/diff", {"include_tags": True})
    assert (page.tombstone.reason, [record.seq for record in page.records]) == ("cap", [4, 5])
    assert bytes(page.records[0].data) == b'{"n": 1}'
    expect(TopicState, 200, "GET", topic)
    server.call(checkpointed(server))
    assert expect(Manifest, 200, "POST", f"{topic}/manifest", {"pin_ms": 1000}).segments[0].last_seq == 5
    assert expect(LogCapture, 200, "POST", "/v0/admin/capture", {"pin_ms": 1000}).snapshot.startswith(b"TSNP")
    assert expect(TopicSealed, 200, "POST", f"{topic}/seal").sealed_seq == 5
    expect(Appended, 200, "POST", queue, write)
    assert expect(Claimed, 200, "POST", f"{queue}/claim", {"node": "w", "max": 2}).count == 2
    assert expect(Extended, 200, "POST", f"{queue}/extend", {"node": "w", "seqs": [1], "lease_ms": 9999}).extended == 1
    assert expect(Nacked, 200, "POST", f"{queue}/nack", {"node": "w", "seqs": [1]}).nacked == 1
    assert expect(Acked, 200, "POST", f"{queue}/ack", {"node": "w", "seqs": [2, 1]}).skipped == [1]
    assert expect(TopicState, 200, "GET", queue).queue.ready == 2
    assert expect(TopicList, 200, "GET", "/v0/topics?prefix=answers-q").topics[0].queue.oldest_ready_age_ms >= 0
    with_letter = {"type": "queue", "dead_letter": "answers"}
    expect(PutTopic, 200, "PUT", queue, with_letter)
    expect(Claimed, 200, "POST", f"{queue}/claim", {"node": "w", "max": 2})
    held = expect(QueueState, 200, "GET", f"{queue}/queue?page_size=1")
    assert [lease.node for lease in expect(QueueState, 200, "GET", f"{queue}/queue?cursor={held.next_cursor}").leases]
    assert expect(Nacked, 200, "POST", f"{queue}/nack", {"node": "w", "seqs": [1], "reason": "tired"}).nacked == 1
    expect(PutTopic, 201, "PUT", f"{queue}-2", {"type": "queue"})
    assert expect(QueueState, 200, "GET", f"{queue}/queue").oldest_ready_age_ms >= 0
    body = {"to": "answers-queue-2", "dry_run": True, "tga": "a"}
    assert expect(Redriven, 200, "POST", f"{queue}/redrive", body).matched == 1
    group = f"{topic}/groups/g"
    expect(PutGroup, 201, "PUT", group, {"from": "start"})
    assert expect(Committed, 200, "POST", f"{group}/commit", {"seq": 4}).moved
    assert expect(GroupState, 200, "GET", group).lag == 1
    assert expect(TopicList, 200, "GET", "/v0/topics?prefix=answers").topics[0].groups.lag_max == 1
    assert expect(GroupList, 200, "GET", f"{topic}/groups").groups[0].seq == 4
    expect(GroupDeleted, 200, "DELETE", group)
    chunk = {"writer": "w", "epoch": 1, "part": 0, "attempt": 0, "chunk": 0, "records": [{"data": 1}]}
    assert expect(ChunkStaged, 200, "POST", f"{queue}/stage", chunk).records == 1
    epoch = {"epoch": 1, "topic": "answers-queue", "parts": [{"part": 0, "attempt": 0, "chunks": 1, "records": 1}]}
    assert expect(EpochCommitted, 200, "POST", "/v0/writers/w/commit", epoch).count == 1
    assert expect(WriterEpochs, 200, "GET", "/v0/writers/w").topics[0].epoch == 1
    assert expect(EpochAborted, 200, "POST", "/v0/writers/w/abort", {"epoch": 2}).dropped == 0
    for dest, status in (("answers-b", 201), ("answers-c", 201), ("answers-c", 200)):
        body = {"source": "answers", "dest": dest, "filter": "a", "fliter": "b"}
        expect(PutRouter, status, "PUT", f"/v0/routers/{dest}", body)
    expect(Router, 200, "GET", "/v0/routers/answers-b")
    expect(RouterList, 200, "GET", "/v0/routers?page_size=1&prefix=answers")
    expect(RouterDeleted, 200, "DELETE", "/v0/routers/answers-b")
    expect(TopicList, 200, "GET", "/v0/topics?page_size=1")
    expect(Deleted, 200, "POST", f"{topic}/delete", {"match": "a"})
    created = expect(WatchCreated, 200, "POST", "/v0/watch", {"topics": {"answers": {}}})
    seen.update(set_members(created.topics["answers"]))
    expect(Health, 200, "GET", "/v0/health")
    expect(Ready, 200, "GET", "/readyz")
    expect(AccessRights, 200, "GET", "/v0/access")
    expect(MetricsJson, 200, "GET", "/v0/metrics", None, {"accept": "application/json"})
    assert expect(ServerConfig, 200, "GET", "/v0/admin/config").settings[0].origin == "default"
    expect(TopicDeleted, 200, "DELETE", topic)
    expect(ErrorEnvelope, 404, "GET", topic)
    expect(ErrorEnvelope, 404, "GET", "/nowhere")

    shapes = {
        shape
        for shape in vars(response_body).values()
        if isinstance(shape, type)
        and issubclass(shape, msgspec.Struct)
        and shape.__module__ == response_body.__name__
        # The members of a base are seen in its subclasses.
        and not any(child.__module__ == response_body.__name__ for child in shape.__subclasses__())
        # Need a sealed segment, and streams: contract/test_segment_replace.py and streams/test_figures.py read them.
        and shape not in (SegmentReplaced, StreamsMetrics)
    }
    members = {f"{shape.__name__}.{name}" for shape in shapes for name in shape.__struct_fields__}
    # These need load, a cold tier, keys, and streams.
    assert members - seen == {
        "Performance.throttle_wait_ms",
        "Performance.cold_segments_read",
        "Router.lost_total",
        "Router.retry",
        "RouterRetry.failures",
        "RouterRetry.retry_in_ms",
        "WatchCreated.ticket",
        "TopicDeleted.names_hidden",
        "TopicState.names_hidden",
        "QueueState.names_hidden",
        "LogCapture.cold_uri",
        "MetricsJson.streams",
    }


def test_a_record_without_labels_has_no_members_for_them() -> None:
    record = read_strictly(DiffRecord, b'{"$seq":18446744073709551615,"$ts":2,"data":null}')
    assert (record.seq, record.node, record.tag, record.meta) == (2**64 - 1, *[msgspec.UNSET] * 3)


def test_what_a_newer_server_sends_is_passed_over() -> None:
    assert msgspec.json.decode(b'{"server_total_ms":1,"new":2}', type=Performance).server_total_ms == 1
