"""Servers whose answers lead nowhere: a read ends with an error, and never asks the same thing for ever.

No Spark, and no real server: a real one does not answer so. After the answers of a test the server refuses all further
requests, so that a reader that asks again and again ends, too, with another error than the expected one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tests.client.faulty_proxy import Asked, FaultyProxy, answer, faulty_proxy
from tests.spark.manifests import make_manifest, make_segment
from topics.errors import BadFrame, ColdUnavailable, CorruptRecord, TopicsError
from topics.formats import segment
from topics.formats.records import Record
from topics.spark import schemas
from topics.spark.loss import TopicsDataLoss
from topics.spark.manifest import Manifest
from topics.spark.options import parse_options
from topics.spark.reading.locate import MOVES_MAX
from topics.spark.reading.source import TopicsReader, TopicsStreamReader

Mode = Literal["batch", "stream"]
HEAD_SEQ = 9
EPOCH = 3
# Nothing listens there, and nothing is passed on.
NOWHERE = "http://127.0.0.1:1"
REFUSED = answer("400 -", b'{"error":{"code":"invalid_request","message":"asked too often"}}')


def frames(*seqs: int, next_seq: int, head_seq: int = HEAD_SEQ, gap: str | None = None) -> bytes:
    body = b"".join(segment.encode(Record(seq, 1000 + seq, None, None, b"{}", None)) for seq in seqs)
    headers = [f"Topics-Next-Seq: {next_seq}", f"Topics-Head-Seq: {head_seq}", f"Topics-Epoch: {EPOCH}"]
    return answer("200 -", body, *headers, *([] if gap is None else [f"Topics-Gap: {gap}"]))


def damaged(seq: object) -> bytes:
    members = {"code": "corrupt_record", "message": "a record is damaged", "detail": {"seq": seq}}
    return answer("500 -", msgspec.json.encode({"error": members}))


@contextmanager
def serving(manifest: Manifest, *answers: bytes) -> Iterator[FaultyProxy]:
    """A server with this manifest, and with these answers to requests for frames."""
    left = list(answers)

    def route(asked: Asked) -> bytes:
        if asked.target.startswith("/v0/topics/t/frames?"):
            return left.pop(0) if left else REFUSED
        assert asked.target.startswith("/v0/topics/t/manifest")
        return answer("200 -", msgspec.json.encode(manifest))

    with faulty_proxy(NOWHERE) as server:
        server.route = route
        yield server


def tail_of_nine() -> Manifest:
    """All records are in no file yet."""
    return make_manifest("t", head_seq=HEAD_SEQ, tail=HEAD_SEQ, epoch=EPOCH)


def seqs_of(mode: Mode, given: dict[str, str]) -> Iterator[int]:
    """What Spark does on a driver and in its tasks."""
    options = parse_options(given, mode=mode)
    schema = schemas.schema_of(options)
    reader: Any
    if mode == "batch":
        reader = TopicsReader(options, schema)
        tasks = reader.partitions()
    else:
        reader = TopicsStreamReader(options, schema)
        start = reader.initialOffset()
        tasks = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
        reader.stop()
    for task in tasks:
        for batch in reader.read(task):
            yield from batch.column("seq").to_pylist()


def read(mode: Mode, server: FaultyProxy, **given: str) -> tuple[list[int], TopicsError]:
    """The seqs that a read gives before its error, and the error."""
    given = {"endpoint": server.url, "subscribe": "t", "retries": "0", "startingOffsets": "earliest", **given}
    seqs: list[int] = []
    with pytest.raises(TopicsError) as caught:
        seqs.extend(seqs_of(mode, given))
    return seqs, caught.value


def asked_frames(server: FaultyProxy) -> list[str]:
    targets = [asked.target for asked in server.asked]
    return [target.partition("?")[2].partition("&max_bytes")[0] for target in targets if "/frames?" in target]


@pytest.mark.parametrize("mode", ["batch", "stream"])
@pytest.mark.parametrize(
    "stuck",
    [
        frames(next_seq=5),
        frames(next_seq=4),
        frames(next_seq=0),
        frames(next_seq=-7),
        frames(5, 6, next_seq=5),
        frames(1, 2, 3, 4, next_seq=5),
        frames(next_seq=5, gap="5-9;cap"),
        damaged(4),
        damaged(0),
    ],
    ids=["same", "back", "zero", "below zero", "records", "old records", "gap", "old damage", "damage at zero"],
)
def test_an_answer_without_progress_ends_the_read(mode: Mode, stuck: bytes) -> None:
    with serving(tail_of_nine(), frames(1, 2, 3, 4, next_seq=5), stuck) as server:
        url = server.url
        seqs, error = read(mode, server, gaps="rows", onCorrupt="rows")
    assert seqs == [1, 2, 3, 4]
    assert isinstance(error, BadFrame)
    assert error.message.startswith(
        f'{url}: topic "t" from seq 5 on: the server answers without progress, with next seq'
    )
    assert asked_frames(server) == ["from_seq=1&to_seq=9", "from_seq=5&to_seq=9"]


@pytest.mark.parametrize("mode", ["batch", "stream"])
@pytest.mark.parametrize("next_seq", [5, 3])
def test_a_server_that_has_lost_the_records_meanwhile_ends_the_read(mode: Mode, next_seq: int) -> None:
    """As a real server answers after it was restored: with its first records."""
    stuck = frames(1, 2, next_seq=next_seq, head_seq=next_seq - 1, gap=f"1-{next_seq - 1};recreated")
    with serving(tail_of_nine(), frames(1, 2, 3, 4, next_seq=5), stuck) as server:
        url = server.url
        seqs, error = read(mode, server, gaps="rows")
    assert seqs == [1, 2, 3, 4]
    assert isinstance(error, TopicsDataLoss)
    assert error.gap[:4] == ("t", 5, 9, "regressed")
    assert error.message.startswith(f'{url}: data loss: topic "t": seqs 5-9 are above the head')


def test_a_damaged_record_without_a_seq_is_the_error_of_the_server() -> None:
    for on_corrupt in ("fail", "rows"):
        with serving(tail_of_nine(), damaged(None)) as server:
            seqs, error = read("batch", server, onCorrupt=on_corrupt)
        assert (seqs, type(error), error.message) == ([], CorruptRecord, "a record is damaged")


def test_a_server_that_lists_files_which_are_not_there_is_asked_a_limited_number_of_times(tmp_path: Path) -> None:
    (tmp_path / "STORE").write_bytes(msgspec.json.encode({"format": 1, "store_id": "5" * 32}))
    gone = msgspec.structs.replace(
        make_segment(1, HEAD_SEQ), uri=f"file://{tmp_path}/topics/00000007/seg-{1:016d}.data"
    )
    manifest = make_manifest(
        "t", head_seq=HEAD_SEQ, epoch=EPOCH, checkpointed_seq=HEAD_SEQ, segments=(gone,), store_id="5" * 32
    )
    with serving(manifest) as server:
        seqs, error = read("batch", server)
    assert (seqs, type(error)) == ([], ColdUnavailable)
    assert error.message == 'topic "t": the files of seqs 1-9 are gone or change all the time; read again'
    # Once for the plan.
    assert len(server.asked) == 1 + MOVES_MAX


def test_a_head_that_goes_back_ends_a_query() -> None:
    with serving(make_manifest("t", head_seq=4, tail=4, epoch=EPOCH)) as server:
        texts = {"endpoint": server.url, "subscribe": "t", "retries": "0"}
        options = parse_options(texts, mode="stream")
        reader = TopicsStreamReader(options, schemas.schema_of(options))
        start = reader.initialOffset()
        start["topics"]["t"]["seq"] = HEAD_SEQ
        with pytest.raises(TopicsDataLoss, match='topic "t": seqs 5-9 are above the head'):
            reader.latestOffset(start, reader.getDefaultReadLimit())
        reader.stop()
