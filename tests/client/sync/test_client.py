"""Calls for readers of files and for staged writes, lists, warnings, Arrow, tracing and TLS, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import topics
from tests.engine.offers import rewritten
from tests.server.running import Running, running
from tests.server.test_tls import make_pair
from topics import Client
from topics.client import calls
from topics.client.answers import FramesGap
from topics.client.calls import PartOfEpoch
from topics.errors import InvalidRequest, RecordsLost
from topics.formats import segment
from topics.spark.manifest import decode_manifest


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "data", segment_max_events=10) as running_server:
        yield running_server


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with Client(server.url) as made:
        yield made


def records(*texts: str, tag: str = "") -> bytes:
    label = f',"tag":"{tag}"' if tag else ""
    members = (f'{{"data":{text}{label}}}' for text in texts)
    return f"[{','.join(members)}]".encode()


def test_names_are_listed_beyond_one_page(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "LIST_PAGE_SIZE", 3)
    wanted = [f"t{number:04d}" for number in range(10)]
    for name in wanted:
        client.create(name, durability="memory")
    assert client.topics("t") == wanted


def test_warnings_about_a_config_are_logged_or_told(
    client: Client, server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    warning = 'config of topic "warned": "durabilty" is not known, and was ignored: did you mean durability?'
    client.create("warned", durabilty="fsync")  # type: ignore[misc]
    assert caplog.messages[-1] == warning
    told: list[str] = []
    with Client(server.url, on_warning=told.append) as other:
        other.create("warned", durabilty="fsync")  # type: ignore[misc]
    assert told == [warning]


def test_an_encoded_write_is_taken_as_it_is(client: Client) -> None:
    assert client.append_encoded("t", records("1", '"two"', tag="x"), key='k"1').last_seq == 2
    assert client.append_encoded("t", records("1", '"two"', tag="x"), key='k"1').deduped
    assert [(record.data, record.tag) for record in client.read("t").records] == [(b"1", "x"), (b'"two"', "x")]


def test_lists_come_with_their_numbers(client: Client) -> None:
    client.append("a.1", [1, 2])
    client.append("b.1", [1])
    assert [(entry.topic, entry.count) for entry in client.topic_list("a.")] == [("a.1", 2)]
    client.create_router("r1", "a.1", "c")
    client.create_router("r2", "b.1", "d")
    assert [router.router for router in client.routers(source="b.1")] == ["r2"]
    assert [router.router for router in client.routers("r", dest="c")] == ["r1"]


def test_a_table_has_every_record_and_counts_lost_ones(client: Client) -> None:
    client.create("t", cap_records=2)
    client.append("t", [1, 2, topics.NewRecord({"a": 3}, "tag", "node", {"m": 1})])
    with pytest.raises(RecordsLost):
        client.read_arrow("t")
    table = client.read_arrow("t", loss="yield")
    assert table.schema.metadata == {b"topics.lost_records": b"1"}
    assert table.column_names == ["seq", "ts", "node", "tag", "data", "meta"]
    assert table.column("seq").to_pylist() == [2, 3]
    assert table.column("data").to_pylist() == ["2", '{"a":3}']
    assert table.to_pylist()[1]["meta"] == '{"m":1}'
    assert client.read_arrow("t", 3).num_rows == 0


def test_a_trace_goes_from_the_writer_to_the_worker(server: Running) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("test")
    seen: list[int] = []
    with Client(server.url, tracing=True) as client:
        client.create("q", type="queue")
        with tracer.start_as_current_span("write") as span:
            client.append("q", [topics.NewRecord(1, meta={"own": 1}), topics.NewRecord(2, meta=[1])])
        client.append("q", [3])
        first, second, third = client.read("q").records
        assert first.meta is not None
        assert msgspec.json.decode(first.meta).keys() == {"own", "traceparent"}
        assert (second.meta, third.meta) == (b"[1]", None)

        def handle(job: topics.Job) -> None:
            seen.append(trace.get_current_span().get_span_context().trace_id)
            if len(seen) == 3:
                worker.stop()

        worker = topics.Worker(client, "q", handle, tracing=True)
        worker.run()
    assert seen[0] == span.get_span_context().trace_id
    assert seen[1] != seen[0]


def test_a_websocket_takes_commands_and_gives_messages(client: Client) -> None:
    client.append("t", [1])
    with client.websocket() as socket:
        socket.send({"op": "subscribe", "topic": "t", "request_id": 1})
        ops = [(socket.receive(30) or {})["op"] for _ in range(3)]
        assert ops == ["subscribed", "record", "caught_up"]
        assert socket.receive(0.01) is None


def test_a_server_with_tls_is_trusted_by_its_certificate_only(tmp_path: Path) -> None:
    certificate = make_pair(tmp_path)
    with running(tmp_path / "data", tls_cert=certificate.cert, tls_key=certificate.key) as server:
        url = server.url.replace("http://127.0.0.1", "https://localhost")
        with Client(url, ca_file=certificate.cert) as client:
            assert client.append("t", [1]).first_seq == 1
            assert [item.seq for item in client.read_all("t", loss="raise")] == [1]
            assert len(list(client.tail("t", wait_ms=0))) == 1
        with Client(url, retries=0) as client, pytest.raises(topics.Unreachable, match="certificate"):
            client.health()
    with pytest.raises(InvalidRequest, match="ca_file"):
        Client(url, ca_file=str(tmp_path / "absent"))


def test_frames_are_read_on_from_where_an_answer_ended(client: Client) -> None:
    client.create("t")
    client.append_encoded("t", records(*map(str, range(30))))
    seqs: list[int] = []
    next_seq = 1
    while next_seq <= 25:
        answer = client.frames("t", next_seq, 25, max_bytes=500)
        assert (answer.head_seq, answer.epoch, answer.gap) == (30, 1, None)
        seqs += [frame.seq for frame in segment.walk(answer.body, 0, len(answer.body))]
        next_seq = answer.next_seq
    assert seqs == list(range(1, 26))


def test_frames_name_the_gap_in_front_of_them(client: Client) -> None:
    client.create("t", cap_records=5)
    client.append_encoded("t", records(*map(str, range(20))))
    answer = client.frames("t", 3, 20)
    assert answer.gap == FramesGap(3, 15, "cap")
    assert answer.next_seq == 21


def test_sealed_segments_are_listed_and_exchanged(server: Running, client: Client, tmp_path: Path) -> None:
    client.create("t")
    client.append_encoded("t", records(*map(str, range(10)), tag="x"))
    sealed = client.seal("t")
    assert (sealed.sealed_seq, sealed.segments) == (10, 1)
    picture = decode_manifest(client.manifest("t", from_seq=2, to_seq=9, pin_ms=0))
    (found,) = picture.segments
    path = Path(found.uri.removeprefix("file://"))
    data, idx = rewritten(path.read_bytes(), 1, 10, lambda _: True)
    staging = tmp_path / "data" / "staging"
    staging.mkdir(exist_ok=True)
    (staging / "new.data").write_bytes(data)
    (staging / "new.idx").write_bytes(idx)
    done = client.replace_segment(
        topic_id=picture.topic_id, epoch=1, first_seq=1, expect_digest=found.digest, data="new.data", idx="new.idx"
    )
    assert (done.removed, done.digest) == (0, found.digest)


def test_staged_records_become_visible_with_the_commit_and_not_before(client: Client) -> None:
    client.create("t")

    def stage(epoch: int, part: int, text: str) -> None:
        members = {"writer": "w:1", "epoch": epoch, "part": part, "attempt": 0, "chunk": 0}
        body = msgspec.json.encode({**members, "records": [{"data": text}]})
        assert client.stage("t", body).records == 1

    stage(0, 1, "b")
    stage(0, 0, "a")
    assert client.state("t").head_seq == 0
    done = client.commit_epoch("w:1", 0, "t", [PartOfEpoch(0, 0, 1, 1), PartOfEpoch(1, 0, 1, 1)])
    assert (done.first_seq, done.last_seq, done.deduped) == (1, 2, False)
    assert client.commit_epoch("w:1", 0, "t", [PartOfEpoch(0, 0, 1, 1), PartOfEpoch(1, 0, 1, 1)]).deduped
    assert [bytes(record.data) for record in client.read("t", 0).records] == [b'"a"', b'"b"']
    assert [entry.epoch for entry in client.writer("w:1").topics] == [0]
    stage(1, 0, "c")
    client.abort_epoch("w:1", 1)
    assert client.state("t").head_seq == 2
