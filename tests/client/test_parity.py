"""What a program gets from a log is the same, blocking or with asyncio, from a server or from its own process."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Iterator
from typing import Any, TypedDict

import msgspec
import pytest

import topics
from tests.client.every_log import KINDS, PATIENCE_S, log_of, producer_of, run_worker, seq_of, topic_of, worker_of
from tests.embedded.python_process import run_code
from topics.errors import BadPayload, Closed, InvalidRequest, NotAQueue, RecordsLost, TopicNotFound


@pytest.fixture(scope="module", params=KINDS)
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with log_of(request.param, tmp_path_factory.mktemp("data")) as made:
        yield made


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A new topic for each test."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


@dataclasses.dataclass
class Order:
    id: int
    total: float = 0.0


class Parcel(msgspec.Struct):
    id: int


class Note(TypedDict):
    text: str


def test_topics_come_and_go(log: Any, name: str) -> None:
    assert log.create(name, cap_records=5) is True
    assert log.create(name, cap_records=6) is False
    assert name in log.topics()
    state = log.state(name)
    assert (state.topic, state.head_seq, state.next_seq, state.count, state.config.cap_records) == (name, 0, 1, 0, 6)
    assert log.drop(name) is True
    assert log.drop(name) is False
    with pytest.raises(TopicNotFound):
        log.state(name)


def test_what_is_appended_is_read_back_byte_for_byte(log: Any, name: str) -> None:
    payloads = [
        {"id": 1},
        Order(2, 9.5),
        Parcel(3),
        b'{"id" : 4}',
        None,
        "text",
        topics.NewRecord(6, "a", "n", {"m": 1}),
    ]
    done = log.append(name, payloads)
    assert (done.first_seq, done.last_seq, done.head_seq, done.count) == (1, 7, 7, 7)
    assert (done.created, done.deduped) == (True, False)
    page = log.read(name)
    assert (page.topic, page.next_from_seq, page.head_seq, page.earliest_seq) == (name, 7, 7, 1)
    assert (page.caught_up, page.lag, page.tombstone) == (True, 0, None)
    assert all(type(record) is topics.Record for record in page.records)
    assert [record.data for record in page.records] == [
        b'{"id":1}',
        b'{"id":2,"total":9.5}',
        b'{"id":3}',
        b'{"id" : 4}',
        b"null",
        b'"text"',
        b"6",
    ]
    assert page.records[-1][2:] == ("n", "a", b"6", b'{"m":1}')
    assert page.records[0][2:] == (None, None, b'{"id":1}', None)


def test_a_key_makes_a_repeat_safe(log: Any, name: str) -> None:
    first = log.append(name, [1, 2], key="k")
    again = log.append(name, [1, 2], key="k")
    assert (again.first_seq, again.last_seq, again.deduped) == (first.first_seq, first.last_seq, True)
    assert log.append(name, [1, 2]).first_seq == 3
    with pytest.raises(TopicNotFound):
        log.append(f"{name}-absent", [1], create=False)


@pytest.mark.parametrize("payloads", [[], "text", {"a": 1}, [b"{"], [float("nan")], [object()], [b"1}, {2"]])
def test_a_write_that_is_none_is_refused(log: Any, name: str, payloads: Any) -> None:
    with pytest.raises(InvalidRequest):
        log.append(name, payloads)


def test_an_empty_poll_is_an_empty_list(log: Any, name: str) -> None:
    log.create(name, type="queue")
    assert log.read(name, wait_ms=5).records == []
    assert log.claim(name, "w") == []
    assert log.claim(name, "w", wait_ms=5) == []
    assert list(log.tail(name, wait_ms=0)) == []
    assert list(log.read_all(name)) == []


def test_lost_records_are_told_everywhere(log: Any, name: str) -> None:
    log.create(name, cap_records=2)
    log.append(name, [1, 2, 3, 4, 5])
    lost = topics.Tombstone(1, 3, "cap", 3, 4, 5)
    assert log.read(name).tombstone == lost
    kept = log.read(name, 3).records
    assert list(log.read_all(name)) == [lost, *kept]
    assert list(log.tail(name, wait_ms=0)) == [lost, *kept]
    with pytest.raises(RecordsLost) as caught:
        list(log.read_all(name, loss="raise"))
    assert list(log.read_all(name, caught.value.next_from_seq, loss="raise")) == kept
    with pytest.raises(InvalidRequest):
        log.read_all(name, loss="hide")


def test_a_tail_gives_what_is_there_and_then_what_comes(log: Any, name: str) -> None:
    log.append(name, [1, 2], key="a")
    log.append(name, [topics.NewRecord(3, node="me")])
    tail = log.tail(name, 1, skip_nodes=["me"])
    assert next(tail).seq == 2
    writer = threading.Thread(target=log.append, args=(name, [topics.NewRecord(4, tag="t")]))
    writer.start()
    assert next(tail)[2:] == (None, "t", b"4", None)
    writer.join()
    tail.close()


def test_records_are_deleted_by_seq_by_tag_and_by_prefix(log: Any, name: str) -> None:
    log.append(name, [topics.NewRecord(number, tag=f"{'ab'[number % 2]}:{number}") for number in range(1, 9)])
    assert log.delete(name, before_seq=3).deleted == 2
    assert log.delete(name, tag="a:4").deleted == 1
    assert log.delete(name, tag_prefix="b:", before_seq=6).deleted == 2
    assert [record.seq for record in log.read_all(name, loss="raise")] == [6, 7, 8]


def test_a_group_keeps_the_place_of_its_reader(log: Any, name: str) -> None:
    log.append(name, [1, 2, 3])
    assert log.create_group(name, "billing")[1:] == (True, True)
    assert log.create_group(name, "billing")[1:] == (False, False)
    for record in log.tail(name, group="billing", wait_ms=0):
        if record.seq == 2:
            assert log.commit(name, "billing", record.seq).moved
    assert not log.commit(name, "billing", 1).moved
    cursor = log.group(name, "billing")
    assert type(cursor) is topics.GroupCursor
    assert (cursor.group, cursor.seq, cursor.head_seq, cursor.lag) == ("billing", 2, 3, 1)
    assert log.groups(name) == [cursor]
    assert [record.seq for record in log.read(name, group="billing").records] == [3]
    assert [record.seq for record in log.tail(name, group="billing", wait_ms=0)] == [3]
    assert log.create_group(name, "billing", at="head").cursor.seq == 3
    assert log.commit(name, "billing", 1, rewind=True).cursor.seq == 1
    assert log.drop_group(name, "billing") is True
    assert log.drop_group(name, "billing") is False


def test_a_router_copies(log: Any, name: str) -> None:
    log.append(name, [0])
    assert log.create_router(f"r-{name}", name, f"{name}-copy", tag_prefix="a:") is True
    log.append(name, [topics.NewRecord(1, tag="a:1"), topics.NewRecord(2, tag="b:1")])
    assert [record.data for record in log.read_all(f"{name}-copy", loss="raise")] == [b"1"]
    state = log.router(f"r-{name}")
    assert (state.source, state.dest, state.forwarded_total) == (name, f"{name}-copy", 1)
    assert f"r-{name}" in [state.router for state in log.routers()]
    assert log.drop_router(f"r-{name}") is True
    assert log.drop_router(f"r-{name}") is False


def test_a_job_is_claimed_extended_given_back_and_acked(log: Any, name: str) -> None:
    log.create(name, type="queue", lease_ms=30_000)
    log.append(name, [topics.NewRecord({"n": 1}, tag="t", meta={"m": 1}), {"n": 2}])
    job, other = log.claim(name, "w", max_jobs=5, wait_ms=None)
    assert type(job) is topics.Job
    assert (job.seq, job.tag, job.data, job.meta, job.deliveries) == (1, "t", b'{"n":1}', b'{"m":1}', 1)
    extended = log.extend(name, "w", [job], lease_ms=60_000)
    assert extended.deadlines.keys() == {1}
    assert extended.deadlines[1] > job.deadline
    assert log.nack(name, "w", [job]).settled == 1
    again = log.claim(name, "w")[0]
    assert (again.seq, again.deliveries) == (1, 2)
    # The lease of the first delivery has ended, and a job means the lease that it came with.
    assert log.ack(name, "w", [job])[:2] == (0, [1])
    assert log.ack(name, "w", [again, other.seq])[:4] == (2, [], 0, 0)
    with pytest.raises(InvalidRequest):
        log.claim(name, "w", max_jobs=0)
    log.create(f"{name}-log")
    with pytest.raises(NotAQueue):
        log.claim(f"{name}-log", "w")


def test_a_worker_does_every_job_once_and_failed_ones_again(log: Any, name: str) -> None:
    log.create(name, type="queue")
    log.append(name, list(range(30)))
    seen: list[tuple[int, int]] = []
    is_done = threading.Event()

    def handle(job: topics.Job) -> None:
        seen.append((int(job.data), job.deliveries))
        if int(job.data) % 10 == 3 and job.deliveries == 1:
            raise ValueError("the first try fails")
        if len(seen) == 33:
            is_done.set()

    with worker_of(log, name, handle, concurrency=4, retry_delay_ms=0) as worker:
        assert is_done.wait(PATIENCE_S)
    assert sorted(seen) == sorted([(number, 1) for number in range(30)] + [(number, 2) for number in (3, 13, 23)])
    assert (worker.done_count, worker.failed_count) == (30, 3)
    assert log.state(name).count == 0


def test_a_job_that_fails_too_often_goes_to_the_dead_letters(log: Any, name: str) -> None:
    log.create(name, type="queue", max_deliveries=2, dead_letter=f"{name}-dead")
    log.append(name, [{"n": 1}])

    def handle(job: topics.Job) -> None:
        raise ValueError("no such customer")

    log.create(f"{name}-dead")
    with worker_of(log, name, handle, retry_delay_ms=lambda job, error: 0):
        (dead,) = log.read(f"{name}-dead", wait_ms=PATIENCE_S * 1000).records
    assert dead.data == b'{"n":1}'
    meta = msgspec.json.decode(dead.meta)
    assert meta["$dead_letter_from"] == name
    assert meta["$dead_letter_reason"] == "ValueError: no such customer"


def test_dead_letters_are_moved_back(log: Any, name: str) -> None:
    log.create(name, type="queue", max_deliveries=1, dead_letter=f"{name}-dead")
    log.append(name, [topics.NewRecord(number, tag=f"{'ab'[number % 2]}:{number}") for number in range(6)])
    for _ in range(2):
        log.nack(name, "w", log.claim(name, "w", max_jobs=10))
    assert (log.state(name).count, log.state(f"{name}-dead").count) == (0, 6)
    shown = log.redrive(name, tag_prefix="a:", dry_run=True)
    assert (shown.matched, shown.moved, len(shown.jobs)) == (3, 0, 3)
    assert log.redrive(name, tag_prefix="a:").moved == 3
    assert log.redrive(name, limit=1, key="k").moved == 1
    assert log.redrive(name, limit=1, key="k").moved == 1
    assert log.redrive(name, tag="b:5").moved == 1
    depth = log.depth(name)
    assert (depth.ready, depth.in_flight, depth.delayed) == (5, 0, 0)
    with pytest.raises(InvalidRequest):
        log.redrive(name, tag="a", tag_prefix="a")


def test_the_lease_of_a_job_is_extended_while_it_is_worked_on(log: Any, name: str) -> None:
    # A process that stands still for a whole lease cannot extend it. A longer lease outlasts that.
    leases_ms = (200, 1000, 5000, 20_000)
    assert any(is_job_kept(log, f"{name}-{lease_ms}", lease_ms) for lease_ms in leases_ms)


def is_job_kept(log: Any, name: str, lease_ms: int) -> bool:
    """Whether no other claim gets a job that is worked on for longer than its lease."""
    log.create(name, type="queue")
    log.append(name, [1])
    has_begun, may_end = threading.Event(), threading.Event()
    seen: list[int] = []

    def handle(job: topics.Job) -> None:
        seen.append(job.deliveries)
        has_begun.set()
        assert may_end.wait(PATIENCE_S)

    with worker_of(log, name, handle, lease_ms=lease_ms, concurrency=2) as worker:
        assert has_begun.wait(PATIENCE_S)
        # Longer than the lease: without an extension another claim would get the job meanwhile.
        claimed = log.claim(name, "other", wait_ms=2 * lease_ms)
        may_end.set()
    return (claimed, seen, worker.done_count) == ([], [1], 1)


def test_a_worker_of_a_topic_that_is_no_queue_says_so(log: Any, name: str) -> None:
    log.create(name)
    with pytest.raises(NotAQueue):
        run_worker(log, name, print)


def test_a_producer_delivers_every_record_in_order(log: Any, name: str) -> None:
    with producer_of(log, name, linger_ms=1, max_records=7, buffer_bytes=2000) as producer:
        delivered = [producer.append({"n": number}, tag=f"t{number % 3}") for number in range(100)]
        producer.flush()
        assert log.state(name).head_seq == 100
    assert [seq_of(log, one) for one in delivered] == list(range(1, 101))
    found = [(msgspec.json.decode(record.data)["n"], record.tag) for record in log.read_all(name, loss="raise")]
    assert found == [(number, f"t{number % 3}") for number in range(100)]
    with pytest.raises(Closed):
        producer.append(1)


def test_a_producer_tells_every_caller_why_its_record_was_refused(log: Any, name: str) -> None:
    log.create(name, cap_records=3, discard="reject")
    with producer_of(log, name, linger_ms=60_000) as producer:
        with pytest.raises(InvalidRequest):
            producer.append(b"{")
        delivered = [producer.append(number) for number in range(5)]
        producer.flush()
        for one in delivered:
            with pytest.raises(topics.TopicsError, match="cap"):
                seq_of(log, one)


@pytest.mark.parametrize(("payload", "value"), [(Order, Order(1, 9.5)), (Parcel, Parcel(1)), (Note, {"text": "hi"})])
def test_typed_payloads_come_back_as_their_type(log: Any, name: str, payload: type, value: Any) -> None:
    typed = topic_of(log, name, payload)
    assert typed.append([value, value], tag="t", meta={"m": 1}).last_seq == 2
    first, second = typed.read_all(loss="raise")
    assert (first.seq, first.tag, first.data, second.data) == (1, "t", value, value)
    assert [item.data for item in typed.tail(1, wait_ms=0)] == [value]
    log.append(name, [["something else"]])
    with pytest.raises(BadPayload, match="read on with from_seq=3") as caught:
        list(typed.read_all())
    assert caught.value.seq == 3


def test_typed_jobs_are_worked_on(log: Any, name: str) -> None:
    log.create(name, type="queue")
    typed = topic_of(log, name, Order)
    typed.append([Order(1), Order(2), Order(3)])
    first, second = typed.claim("w", max_jobs=2)
    assert (first.data, second.data) == (Order(1), Order(2))
    assert typed.extend("w", [first], lease_ms=50_000).deadlines.keys() == {1}
    assert typed.nack("w", [second], delay_ms=60_000).settled == 1
    assert typed.ack("w", [first]).settled == 1
    assert log.state(name).count == 2


PUBLIC = {
    kind: {name for name in vars(kind) if not name.startswith("_")}
    for kind in (topics.Client, topics.AsyncClient, topics.Log, topics.AsyncLog)
}


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    assert PUBLIC[topics.Client] == PUBLIC[topics.AsyncClient]
    pairs = [
        (topics.Client, topics.AsyncClient),
        (topics.Worker, topics.AsyncWorker),
        (topics.Producer, topics.AsyncProducer),
        (topics.Topic, topics.AsyncTopic),
    ]
    for one, other in pairs:
        names = {name for name in vars(one) if not name.startswith("_")}
        assert names == {name for name in vars(other) if not name.startswith("_")}
        for name in names:
            if not isinstance(vars(one)[name], property):
                own, others = (list(inspect.signature(vars(kind)[name]).parameters.values()) for kind in (one, other))
                assert [(p.name, p.kind, p.default) for p in own] == [(p.name, p.kind, p.default) for p in others], name


def test_a_client_has_what_the_embedded_log_has_with_the_same_arguments() -> None:
    only_inside = {"append_batch", "checkpoint", "leave_to_parent", "recovery"}
    assert PUBLIC[topics.Log] - only_inside <= PUBLIC[topics.Client]
    for name in PUBLIC[topics.Log] - only_inside - {"topics", "routers"}:
        own, other = (inspect.signature(vars(kind)[name]).parameters.values() for kind in (topics.Log, topics.Client))
        assert [(p.name, p.kind, p.default) for p in own] == [(p.name, p.kind, p.default) for p in other], name


def test_every_method_of_a_client_is_explained_with_an_example() -> None:
    for kind in (topics.Client, topics.AsyncClient):
        for name in PUBLIC[kind] - {"url"}:
            assert ">>> " in (getattr(kind, name).__doc__ or ""), f"{kind.__name__}.{name}"


def test_names_of_the_package_are_imported_when_they_are_used() -> None:
    code = "import topics, sys; print([name for name in sys.modules if name.startswith('topics.')])"
    assert run_code(code).stdout == "[]\n"
    heavy = {"asyncio", "ssl", "http", "websockets", "topics.engine", "topics.embedded", "topics.client.sync.worker"}
    code = f"import topics, sys; topics.Client; print([name for name in sys.modules if name in {heavy}])"
    assert run_code(code).stdout == "[]\n"
