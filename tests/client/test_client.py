"""The calls of the contract as methods, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.engine.offers import rewritten
from tests.server.running import Running, running
from topics.client import Client, FramesGap, PartOfEpoch
from topics.errors import TopicNotFound
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


def test_topics_come_and_go(client: Client) -> None:
    assert client.put_topic("parcels", {"ttl_ms": 5000}).created
    assert client.topic("parcels").config.ttl_ms == 5000
    assert not client.put_topic("parcels").created
    client.put_topic("parts")
    assert client.topic_names() == ["parcels", "parts"]
    assert client.topic_names("parc") == ["parcels"]
    assert client.delete_topic("parts")
    assert not client.delete_topic("parts")
    with pytest.raises(TopicNotFound):
        client.topic("parts")
    assert "manifest" in client.health().features


def test_names_are_listed_beyond_one_page(client: Client) -> None:
    wanted = [f"t{number:04d}" for number in range(1003)]
    for name in wanted:
        client.put_topic(name, {"durability": "memory"})
    assert client.topic_names("t") == wanted


def test_warnings_about_a_config_are_returned_and_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    warning = '"durabilty" is not known, and was ignored: did you mean durability?'
    assert client.put_topic("warned", {"durabilty": "fsync"}).warnings == [warning]
    assert caplog.messages[-1] == f'config of topic "warned": {warning}'


def test_records_are_appended_read_and_deleted(client: Client) -> None:
    client.put_topic("t")
    assert client.append("t", records("1", '"two"')).last_seq == 2
    assert client.append("t", records("3"), idempotency_key='k"1').first_seq == 3
    assert client.append("t", records("3"), idempotency_key='k"1').deduped
    page = client.diff("t", 1)
    assert [(record.seq, bytes(record.data)) for record in page.records] == [(2, b'"two"'), (3, b"3")]
    assert client.diff("t", 0, limit=1).next_from_seq == 1
    assert client.delete_below("t", 3).deleted == 2
    assert [record.seq for record in client.diff("t", 0).records] == [3]


def test_an_append_is_not_answered_with_every_seq_and_a_diff_has_the_tags(client: Client) -> None:
    client.put_topic("t")
    assert client.append("t", records("1", "2", tag="x")).seqs is msgspec.UNSET
    assert [record.tag for record in client.diff("t", 0).records] == ["x", "x"]


def test_frames_are_read_on_from_where_an_answer_ended(client: Client) -> None:
    client.put_topic("t")
    client.append("t", records(*map(str, range(30))))
    seqs: list[int] = []
    next_seq = 1
    while next_seq <= 25:
        answer = client.frames("t", next_seq, 25, max_bytes=500)
        assert (answer.head_seq, answer.epoch, answer.gap) == (30, 1, None)
        seqs += [frame.seq for frame in segment.walk(answer.body, 0, len(answer.body))]
        next_seq = answer.next_seq
    assert seqs == list(range(1, 26))


def test_frames_name_the_gap_in_front_of_them(client: Client) -> None:
    client.put_topic("t", {"cap_records": 5})
    client.append("t", records(*map(str, range(20))))
    answer = client.frames("t", 3, 20)
    assert answer.gap == FramesGap(3, 15, "cap")
    assert answer.next_seq == 21


def test_sealed_segments_are_listed_and_exchanged(server: Running, client: Client, tmp_path: Path) -> None:
    client.put_topic("t")
    client.append("t", records(*map(str, range(10)), tag="x"))
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
    client.put_topic("t")

    def stage(epoch: int, part: int, text: str) -> None:
        members = {"writer": "w:1", "epoch": epoch, "part": part, "attempt": 0, "chunk": 0}
        body = msgspec.json.encode({**members, "records": [{"data": text}]})
        assert client.stage("t", body).records == 1

    stage(0, 1, "b")
    stage(0, 0, "a")
    assert client.topic("t").head_seq == 0
    done = client.commit("w:1", 0, "t", [PartOfEpoch(0, 0, 1, 1), PartOfEpoch(1, 0, 1, 1)])
    assert (done.first_seq, done.last_seq, done.deduped) == (1, 2, False)
    assert client.commit("w:1", 0, "t", [PartOfEpoch(0, 0, 1, 1), PartOfEpoch(1, 0, 1, 1)]).deduped
    assert [bytes(record.data) for record in client.diff("t", 0).records] == [b'"a"', b'"b"']
    assert [entry.epoch for entry in client.writer("w:1").topics] == [0]
    stage(1, 0, "c")
    client.abort("w:1", 1)
    assert client.topic("t").head_seq == 2
