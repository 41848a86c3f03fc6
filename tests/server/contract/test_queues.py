"""Queues: claim, ack, nack, extend, dead letters, counters."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, Answer, Client
from tests.server.conftest import Connect
from tests.server.running import running

U64_MAX = 2**64 - 1
CALLS = ("claim", "ack", "nack", "extend")
HOLDER_CALLS = CALLS[1:]


def call(client: Client, topic: str, verb: str, body: Any, headers: Any = None) -> Answer:
    return client.request("POST", f"/v0/topics/{topic}/{verb}", body, headers)


def claim(client: Client, topic: str, node: str = "w", **members: Any) -> Any:
    return call(client, topic, "claim", {"node": node} | members).json


def holder_body(verb: str, **members: Any) -> dict[str, Any]:
    """A valid body, changed as the test says."""
    return {"node": "w", "seqs": [1]} | ({"lease_ms": 1000} if verb == "extend" else {}) | members


def counters(client: Client, topic: str) -> tuple[int, int, int]:
    queue = client.state(topic)["queue"]
    assert queue.keys() == {"ready", "in_flight", "dead_lettered", "delayed", "oldest_ready_age_ms", "dead"}
    return queue["ready"], queue["in_flight"], queue["dead_lettered"]


@pytest.fixture
def queue(client: Client, topic: str) -> str:
    """Jobs 1 to 4."""
    client.put_topic(topic, type="queue")
    client.write(topic, "a", "b", "c", "d")
    return topic


# Claim.


def test_a_claim_shows_jobs_with_their_leases(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    records = [{"data": {"n": 1}, "tag": 'acme:"9"', "meta": {"k": "v"}, "node": "x"}, {"data": None}]
    client.write(topic, records=records)
    answer = claim(client, topic, max=5)
    first, second = answer["claimed"]
    assert answer == {
        "topic": topic,
        "claimed": [first, second],
        "count": 2,
        "ready": 0,
        "performance": answer["performance"],
    }
    assert answer["performance"].keys() == {"server_total_ms"}
    assert first == {
        "$seq": 1,
        "lease_id": "lease_1",
        "deadline": first["deadline"],
        "$ts": first["$ts"],
        "$tag": 'acme:"9"',
        "deliveries": 1,
        "data": {"n": 1},
        "meta": {"k": "v"},
    }
    assert second.keys() == {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
    assert (second["data"], second["lease_id"]) == (None, "lease_2")
    assert 30_000 <= first["deadline"] - first["$ts"] < 60_000


def test_payloads_of_jobs_come_back_byte_for_byte(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    body = b'{"records":[{"data":{"x": 1.50,"x":12345678901234567890123}}]}'
    assert client.request("POST", f"/v0/topics/{topic}", body).status == 200
    assert b'"data":{"x": 1.50,"x":12345678901234567890123}}' in call(client, topic, "claim", {"node": "w"}).body


def test_lease_ids_are_lower_case_hexadecimal(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.write(topic, *range(31))
    assert claim(client, topic, max=31)["claimed"][-1]["lease_id"] == "lease_1f"


@pytest.mark.parametrize(("given", "count"), [(None, 1), (0, 1), (1, 1), (3, 3), (4, 4), (5000, 4), (2**32 - 1, 4)])
def test_max_is_one_by_default_and_pulled_into_range(client: Client, queue: str, given: int | None, count: int) -> None:
    members: dict[str, Any] = {} if given is None else {"max": given}
    answer = claim(client, queue, **members)
    assert [job["$seq"] for job in answer["claimed"]] == list(range(1, count + 1))
    assert (answer["count"], answer["ready"]) == (count, 4 - count)


def test_a_thousand_jobs_are_the_most_of_one_claim(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.write(topic, *range(1005))
    assert claim(client, topic, max=5000)["count"] == 1000
    assert claim(client, topic, max=5000)["count"] == 5


@pytest.mark.parametrize(
    ("given", "lease_ms"),
    [(None, 1_000_000), (0, 100), (99, 100), (700_000, 700_000), (86_400_001, 86_400_000), (U64_MAX, 86_400_000)],
)
def test_lease_ms_is_that_of_the_queue_and_pulled_into_range(
    client: Client, topic: str, given: int | None, lease_ms: int
) -> None:
    client.put_topic(topic, type="queue", lease_ms=1_000_000)
    written = client.write(topic, 1)
    assert written["count"] == 1
    (job,) = claim(client, topic, lease_ms=given)["claimed"]
    assert lease_ms <= job["deadline"] - job["$ts"] < lease_ms + 60_000


BAD_CLAIMS: list[Any] = [
    {},
    {"max": 1},
    {"node": None},
    {"node": 1},
    {"node": "w", "max": -1},
    {"node": "w", "max": "2"},
    {"node": "w", "max": 1.0},
    {"node": "w", "max": None},
    {"node": "w", "max": 2**32},
    {"node": "w", "lease_ms": -1},
    {"node": "w", "lease_ms": 1.5},
    {"node": "w", "lease_ms": "5"},
    {"node": "w", "lease_ms": U64_MAX + 1},
    None,
    [],
    "w",
]


@pytest.mark.parametrize("body", BAD_CLAIMS, ids=json.dumps)
def test_a_claim_of_the_wrong_types_is_refused_even_for_an_absent_topic(client: Client, queue: str, body: Any) -> None:
    encoded = json.dumps(body).encode()
    for name in (queue, f"{queue}.absent"):
        assert call(client, name, "claim", encoded).malformed
    assert counters(client, queue) == (4, 0, 0)


@pytest.mark.parametrize("headers", [{"content-type": None}, {"content-type": "text/plain"}, {}])
def test_a_claim_without_a_body_is_refused_whatever_its_type(client: Client, queue: str, headers: Any) -> None:
    assert call(client, queue, "claim", b"", headers).refusal == (400, "invalid_request")


@pytest.mark.parametrize("node", ["", "x" * 129, "é" * 65])
def test_the_node_of_a_claim_is_checked_behind_the_topic(client: Client, queue: str, node: str) -> None:
    client.put_topic(f"{queue}.log")
    assert call(client, queue, "claim", {"node": node}).refusal == (400, "invalid_request")
    assert call(client, f"{queue}.absent", "claim", {"node": node}).refusal == (404, "topic_not_found")
    assert call(client, f"{queue}.log", "claim", {"node": node}).refusal == (409, "not_a_queue")


def test_the_longest_node_is_fine(client: Client, queue: str) -> None:
    assert claim(client, queue, "é" * 64)["count"] == 1


def test_an_empty_queue_is_claimed_from_in_vain(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    answer = claim(client, topic)
    assert (answer["claimed"], answer["count"], answer["ready"]) == ([], 0, 0)


def test_claims_of_one_window_share_evenly(client: Client, connect: Connect, topic: str) -> None:
    # The longest jitter: all three claims must arrive before it ends, also on a busy machine.
    client.put_topic(topic, type="queue", claim_jitter_ms=5000)
    client.write(topic, *range(7))
    claimers = [connect() for _ in range(3)]
    for place, claimer in enumerate(claimers):
        claimer.start("POST", f"/v0/topics/{topic}/claim", {"node": f"w{place}", "max": 5})
    shares = [[job["$seq"] for job in claimer.finish().json["claimed"]] for claimer in claimers]
    assert sorted(map(len, shares)) == [2, 2, 3]
    assert sorted(seq for share in shares for seq in share) == list(range(1, 8))
    assert all(share == sorted(share) for share in shares)


def test_every_job_is_with_one_worker_at_most_and_is_counted_once(client: Client, connect: Connect, topic: str) -> None:
    """Invariants 45 and 46: workers claim, give back and ack at the same time."""
    client.put_topic(topic, type="queue", lease_ms=600_000)
    client.write(topic, *range(40))
    workers = {f"w{place}": connect() for place in range(4)}
    held: dict[str, set[int]] = {node: set() for node in workers}
    live, delayed = set(range(1, 41)), set[int]()

    def at_once(verb: str, bodies: dict[str, dict[str, Any]]) -> dict[str, Any]:
        for node, body in bodies.items():
            workers[node].start("POST", f"/v0/topics/{topic}/{verb}", {"node": node} | body)
        return {node: workers[node].finish().json for node in bodies}

    def some_of(count: int) -> dict[str, list[int]]:
        return {node: sorted(seqs)[:count] for node, seqs in held.items()}

    for _ in range(5):
        for node, answer in at_once("claim", {node: {"max": 4} for node in workers}).items():
            got = {job["$seq"] for job in answer["claimed"]}
            assert got <= live - delayed
            assert not any(got & seqs for seqs in held.values()), "somebody has it already"
            held[node] |= got
        for node, done in some_of(2).items():
            assert at_once("ack", {node: {"seqs": done}})[node]["acked"] == len(done)
            held[node] -= set(done)
            live -= set(done)
        back = some_of(1)
        for node, answer in at_once("nack", {node: {"seqs": given} for node, given in back.items()}).items():
            assert answer["nacked"] == len(back[node])
            held[node] -= set(back[node])
        later = some_of(1)
        at_once("nack", {node: {"seqs": given, "delay_ms": 86_400_000} for node, given in later.items()})
        for node, given in later.items():
            held[node] -= set(given)
            delayed |= set(given)
        state = client.state(topic)
        in_flight = sum(map(len, held.values()))
        assert state["count"] == len(live)
        assert state["queue"]["in_flight"] == in_flight
        assert state["queue"]["ready"] + in_flight + len(delayed) == len(live)
    assert len(live) < 40
    assert delayed


# Topics that are no queues.


@pytest.mark.parametrize("verb", CALLS)
def test_calls_on_what_is_no_queue_are_refused_and_create_nothing(client: Client, topic: str, verb: str) -> None:
    body = {"node": "w"} if verb == "claim" else holder_body(verb)
    answer = call(client, topic, verb, body)
    assert (answer.refusal, answer.error["detail"]) == ((404, "topic_not_found"), {"topic": topic})
    assert call(client, "a%20b", verb, body).refusal == (404, "topic_not_found")
    client.put_topic(topic)
    answer = call(client, topic, verb, body)
    assert (answer.refusal, answer.error["detail"]) == ((409, "not_a_queue"), {"topic": topic})


@pytest.mark.parametrize("verb", CALLS)
def test_other_methods_are_not_allowed(client: Client, queue: str, verb: str) -> None:
    answer = client.request("GET", f"/v0/topics/{queue}/{verb}")
    assert (answer.refusal, answer.headers["allow"]) == ((405, "method_not_allowed"), "POST")


# Ack, nack, extend.


def test_what_an_ack_answers(client: Client, queue: str) -> None:
    jobs = claim(client, queue, max=3)["claimed"]
    answer = call(client, queue, "ack", {"node": "w", "seqs": [1, 4, 2, 1], "lease_ids": ["lease_1", "", "", ""]}).json
    assert answer == {
        "topic": queue,
        "acked": 2,
        "skipped": [4, 1],
        "ready": 1,
        "in_flight": 1,
        "performance": answer["performance"],
    }
    assert answer["performance"].keys() == {"server_total_ms"}
    assert [job["$seq"] for job in jobs] == [1, 2, 3]
    assert client.datas(queue) == ["c", "d"]
    assert client.diff(queue)["tombstone"] is None


def test_an_ack_of_a_durable_queue_says_how_long_the_sync_took(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue", durability="fsync")
    client.write(topic, 1)
    claim(client, topic)
    answer = call(client, topic, "ack", {"node": "w", "seqs": [1]}).json
    assert answer["performance"]["fsync_ms"] > 0
    again = call(client, topic, "ack", {"node": "w", "seqs": [1]}).json
    assert (again["skipped"], again["performance"].keys()) == ([1], {"server_total_ms"})


def test_what_a_nack_answers(client: Client, queue: str) -> None:
    claim(client, queue, max=3)
    answer = call(client, queue, "nack", {"node": "w", "seqs": [1, 9]}).json
    assert answer == {
        "topic": queue,
        "nacked": 1,
        "skipped": [9],
        "ready": 2,
        "in_flight": 2,
        "performance": answer["performance"],
    }
    delayed = call(client, queue, "nack", {"node": "w", "seqs": [2], "delay_ms": U64_MAX}).json
    assert (delayed["nacked"], delayed["ready"], delayed["in_flight"]) == (1, 2, 1)
    assert counters(client, queue) == (2, 1, 0), "a delayed job is in neither"
    assert client.state(queue)["count"] == 4
    assert [(job["$seq"], job["deliveries"]) for job in claim(client, queue, max=9)["claimed"]] == [(1, 2), (4, 1)]


def test_a_delay_ends(client: Client, queue: str) -> None:
    claim(client, queue, max=4)
    call(client, queue, "nack", {"node": "w", "seqs": [2], "delay_ms": 1})
    while not (answer := claim(client, queue))["count"]:
        pass
    assert answer["claimed"][0]["$seq"] == 2


def test_what_an_extend_answers(client: Client, queue: str) -> None:
    first, _ = claim(client, queue, max=2)["claimed"]
    answer = call(client, queue, "extend", {"node": "w", "seqs": [1, 7, 2], "lease_ms": 60_000}).json
    deadlines = answer["deadlines"]
    assert answer == {
        "topic": queue,
        "extended": 2,
        "skipped": [7],
        "deadlines": {"1": deadlines["1"], "2": deadlines["1"]},
        "performance": answer["performance"],
    }
    assert 25_000 < deadlines["1"] - first["deadline"] < 60_000
    token = {"node": "w", "seqs": [1], "lease_ids": [first["lease_id"]]}
    assert call(client, queue, "ack", token).json["acked"] == 1


@pytest.mark.parametrize(("given", "lease_ms"), [(0, 100), (U64_MAX, 86_400_000)])
def test_an_extension_is_pulled_into_range(client: Client, queue: str, given: int, lease_ms: int) -> None:
    (job,) = claim(client, queue)["claimed"]
    answer = call(client, queue, "extend", {"node": "w", "seqs": [1], "lease_ms": given}).json
    assert lease_ms <= answer["deadlines"]["1"] - (job["deadline"] - 30_000) < lease_ms + 20_000


@pytest.mark.parametrize("verb", HOLDER_CALLS)
def test_no_seqs_are_nothing_to_do(client: Client, queue: str, verb: str) -> None:
    answer = call(client, queue, verb, holder_body(verb, seqs=[])).json
    assert answer["skipped"] == []
    assert {"ack": "acked", "nack": "nacked", "extend": "extended"}[verb] in answer


@pytest.mark.parametrize("verb", HOLDER_CALLS)
@pytest.mark.parametrize(
    "members",
    [{"node": "other"}, {"lease_ids": ["lease_ff"]}, {"lease_ids": ["lease_0"]}, {"seqs": [3]}, {"seqs": [U64_MAX]}],
    ids=json.dumps,
)
def test_what_the_node_does_not_have_is_skipped(client: Client, queue: str, verb: str, members: Any) -> None:
    claim(client, queue)
    body = holder_body(verb, **members)
    assert call(client, queue, verb, body).json["skipped"] == body["seqs"]
    assert counters(client, queue) == (3, 1, 0)


@pytest.mark.parametrize("verb", HOLDER_CALLS)
def test_a_token_of_an_earlier_delivery_does_nothing(client: Client, queue: str, verb: str) -> None:
    (old,) = claim(client, queue)["claimed"]
    call(client, queue, "nack", {"node": "w", "seqs": [1]})
    (new,) = claim(client, queue)["claimed"]
    assert new["deliveries"] == 2
    assert call(client, queue, verb, holder_body(verb, lease_ids=[old["lease_id"]])).json["skipped"] == [1]
    assert (
        call(
            client, queue, verb, holder_body(verb, lease_ids=[new["lease_id"].upper().replace("LEASE", "lease")])
        ).json["skipped"]
        == []
    )


BAD_TYPES: list[dict[str, Any]] = [
    {"node": None},
    {"node": 1},
    {"seqs": None},
    {"seqs": 1},
    {"seqs": ["1"]},
    {"seqs": [1.0]},
    {"seqs": [-1]},
    {"seqs": [None]},
    {"seqs": [U64_MAX + 1]},
    {"lease_ids": None},
    {"lease_ids": [1]},
    {"lease_ids": "lease_1"},
    {"lease_ids": [None]},
]


@pytest.mark.parametrize("verb", HOLDER_CALLS)
@pytest.mark.parametrize("members", BAD_TYPES, ids=json.dumps)
def test_wrong_types_are_refused_even_for_an_absent_topic(client: Client, topic: str, verb: str, members: Any) -> None:
    assert call(client, topic, verb, holder_body(verb, **members)).malformed


@pytest.mark.parametrize(
    ("verb", "members"),
    [
        ("nack", {"delay_ms": -1}),
        ("nack", {"delay_ms": None}),
        ("nack", {"delay_ms": U64_MAX + 1}),
        ("extend", {"lease_ms": None}),
        ("extend", {"lease_ms": -1}),
        ("extend", {"lease_ms": "5"}),
        ("extend", {"lease_ms": U64_MAX + 1}),
    ],
)
def test_wrong_times_are_refused(client: Client, queue: str, verb: str, members: Any) -> None:
    assert call(client, queue, verb, holder_body(verb, **members)).malformed


@pytest.mark.parametrize("verb", HOLDER_CALLS)
def test_required_members_are_required(client: Client, queue: str, verb: str) -> None:
    for member in holder_body(verb):
        body = {name: value for name, value in holder_body(verb).items() if name != member}
        assert call(client, queue, verb, body).malformed
    assert call(client, queue, verb, b'{"node":"w","node":"w","seqs":[],"lease_ms":1}').malformed
    assert call(client, queue, verb, b"").refusal == (400, "invalid_request")
    assert call(client, queue, verb, b"", {"content-type": None}).refusal == (415, "unsupported_media_type")


TOKENS = [
    "lease_",
    "lease_g",
    "lease",
    "1",
    "Lease_1",
    " lease_1",
    "lease_1 ",
    "lease_0x1",
    "lease_1_1",
    "lease_-1",
    "lease_" + "1" * 17,
]


@pytest.mark.parametrize("verb", HOLDER_CALLS)
@pytest.mark.parametrize("token", TOKENS)
def test_what_is_no_token_is_refused(client: Client, queue: str, verb: str, token: str) -> None:
    claim(client, queue)
    assert call(client, queue, verb, holder_body(verb, lease_ids=[token])).refusal == (400, "invalid_request")
    assert counters(client, queue) == (3, 1, 0)


@pytest.mark.parametrize("verb", HOLDER_CALLS)
def test_the_order_of_checks(client: Client, topic: str, verb: str) -> None:
    """Types, token, node, count, length, topic, kind: each is reported only if nothing before it is wrong."""
    too_many = list(range(1001))
    body = holder_body(verb, node="", seqs=too_many, lease_ids=["bad"])

    def refused(**members: Any) -> Answer:
        body.update(members)
        return call(client, topic, verb, body)

    assert refused(seqs=["x"]).malformed
    assert "lease_id" in refused(seqs=too_many).error["message"]
    assert "node" in refused(lease_ids=["lease_1"]).error["message"]
    answer = refused(node="w")
    assert (answer.refusal, answer.error["detail"]) == ((400, "batch_too_large"), {"seqs": 1001, "max": 1000})
    answer = refused(seqs=[1, 2])
    assert (answer.refusal, "as many as seqs" in answer.error["message"]) == ((400, "invalid_request"), True)
    assert refused(seqs=[1]).refusal == (404, "topic_not_found")
    client.put_topic(topic)
    assert refused().refusal == (409, "not_a_queue")


def test_a_thousand_seqs_are_fine(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.write(topic, *range(1000))
    seqs = [job["$seq"] for job in claim(client, topic, max=1000)["claimed"]]
    assert call(client, topic, "ack", {"node": "w", "seqs": seqs}).json["acked"] == 1000
    assert client.state(topic)["count"] == 0


# Leases that end.


def test_a_lease_that_ended_is_worth_nothing_although_nobody_claimed_the_job_since(client: Client, queue: str) -> None:
    claim(client, queue, max=4, lease_ms=100)
    while counters(client, queue)[1]:
        pass
    assert counters(client, queue) == (4, 0, 0)
    assert call(client, queue, "ack", {"node": "w", "seqs": [1, 2]}).json["skipped"] == [1, 2]
    (job,) = claim(client, queue)["claimed"]
    assert (job["$seq"], job["deliveries"], job["lease_id"]) == (1, 2, "lease_5")


# Dead letters.


def exhaust(client: Client, topic: str, times: int) -> None:
    for _ in range(times):
        (job,) = claim(client, topic)["claimed"]
        call(client, topic, "nack", {"node": "w", "seqs": [job["$seq"]]})


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_job_that_was_delivered_too_often_moves(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, type="queue", durability=durability, max_deliveries=2, dead_letter=f"{topic}.dead")
    record = {"data": {"n": 1}, "tag": "t", "node": "x", "meta": {"k": [1.0]}}
    client.write(topic, records=[record, {"data": 2}])
    exhaust(client, topic, 2)
    answer = claim(client, topic, max=5)
    assert [job["$seq"] for job in answer["claimed"]] == [2]
    assert answer["ready"] == 0
    assert counters(client, topic) == (0, 1, 1)
    (letter,) = client.diff(f"{topic}.dead", include_tags=True)["records"]
    assert (letter["data"], letter["$tag"], letter["$node"]) == ({"n": 1}, "t", "x")
    assert letter["meta"] == {
        "k": [1.0],
        "$dead_letter_from": topic,
        "$dead_letter_deliveries": "2",
        "$dead_letter_src_seq": "1",
    }
    state = client.state(f"{topic}.dead")
    assert (state["type"], state["config"]["durability"]) == ("log", "disk")
    assert [record["$seq"] for record in client.diff(topic)["records"]] == [2]


@pytest.mark.parametrize("meta", ["text", 5, [1], None])
def test_a_meta_that_is_no_object_is_replaced(client: Client, topic: str, meta: Any) -> None:
    client.put_topic(topic, type="queue", max_deliveries=1, dead_letter=f"{topic}.dead")
    client.write(topic, records=[{"data": 1, "meta": meta}])
    exhaust(client, topic, 1)
    assert claim(client, topic)["claimed"] == []
    (letter,) = client.diff(f"{topic}.dead")["records"]
    assert letter["meta"].keys() == {"$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"}


@pytest.mark.parametrize("config", [{"max_deliveries": 2}, {"dead_letter": "somewhere"}, {}])
def test_without_a_limit_or_a_place_a_job_is_delivered_without_end(client: Client, topic: str, config: Any) -> None:
    client.put_topic(topic, type="queue", **config)
    client.write(topic, 1)
    exhaust(client, topic, 5)
    assert claim(client, topic)["claimed"][0]["deliveries"] == 6


def test_a_dead_letter_topic_that_is_full_leaves_the_job_where_it_is(client: Client, topic: str) -> None:
    dead = f"{topic}.dead"
    client.put_topic(dead, cap_records=1, discard="reject")
    client.write(dead, "full")
    client.put_topic(topic, type="queue", max_deliveries=1, dead_letter=dead)
    client.write(topic, 1)
    exhaust(client, topic, 1)
    assert claim(client, topic)["claimed"] == []
    assert counters(client, topic) == (1, 0, 0)
    client.request("POST", f"/v0/topics/{dead}/delete", {"before_seq": 9})
    assert claim(client, topic)["claimed"] == []
    assert counters(client, topic) == (0, 0, 1)


# Topics.


def test_reads_and_deletes_know_nothing_of_leases(client: Client, queue: str) -> None:
    claim(client, queue, max=2)
    assert client.datas(queue) == ["a", "b", "c", "d"]
    assert counters(client, queue) == (2, 2, 0)
    client.request("POST", f"/v0/topics/{queue}/delete", {"before_seq": 2})
    assert counters(client, queue) == (2, 1, 0)
    assert call(client, queue, "ack", {"node": "w", "seqs": [1, 2]}).json["skipped"] == [1]


def test_a_new_topic_of_the_name_knows_nothing_of_the_leases_before(client: Client, queue: str) -> None:
    claim(client, queue, max=2)
    client.request("DELETE", f"/v0/topics/{queue}")
    client.put_topic(queue, type="queue")
    client.write(queue, "new")
    assert counters(client, queue) == (1, 0, 0)
    assert call(client, queue, "ack", {"node": "w", "seqs": [1]}).json["skipped"] == [1]


def test_a_queue_stays_one_and_takes_new_settings_for_later_claims(client: Client, queue: str) -> None:
    assert client.request("PUT", f"/v0/topics/{queue}", {}).refusal == (409, "topic_exists_incompatible")
    (first,) = claim(client, queue)["claimed"]
    client.put_topic(queue, type="queue", lease_ms=600_000)
    (second,) = claim(client, queue)["claimed"]
    assert second["deadline"] - first["deadline"] > 500_000
    assert counters(client, queue) == (2, 2, 0)


def test_metrics_show_the_depth_of_queues(tmp_path: Path, protocol: str) -> None:
    """On a separate server, because only a limited number of topics has series."""
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.put_topic("jobs", type="queue")
        client.write("jobs", 1, 2, 3, 4)
        claim(client, "jobs", max=3)
        text = client.request("GET", "/v0/metrics").body.decode()
        figures = client.request("GET", "/v0/metrics", None, {"accept": "application/json"}).json
    assert 'topics_topic_queue_ready{topic="jobs"} 1\n' in text
    assert 'topics_topic_queue_in_flight{topic="jobs"} 3\n' in text
    assert (figures["queue_topics"], figures["queue_leases_in_flight"]) == (1, 3)


def test_a_restart_repeats_no_lease_id_and_keeps_what_was_acked(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.put_topic("jobs", type="queue")
        client.put_topic("kept", type="queue", leases_durable=True, lease_ms=600_000)
        for name in ("jobs", "kept"):
            client.write(name, 1, 2, 3)
            assert claim(client, name, max=2)["count"] == 2
            call(client, name, "ack", {"node": "w", "seqs": [1]})
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        assert (counters(client, "jobs"), counters(client, "kept")) == ((2, 0, 0), (1, 1, 0))
        jobs = claim(client, "jobs", max=9)["claimed"]
        assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(2, 1), (3, 1)]
        assert not {job["lease_id"] for job in jobs} & {"lease_1", "lease_2"}
        token = {"node": "w", "seqs": [2], "lease_ids": ["lease_2"]}
        assert call(client, "jobs", "ack", token).json["skipped"] == [2]
        assert call(client, "kept", "ack", token).json["acked"] == 1
