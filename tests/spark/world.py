"""A real server with small segments in this process, whose checkpoints and moves happen when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.engine.offers import rewritten
from tests.server.running import Running, running
from topics.client.sync.client import Client
from topics.errors import SegmentBusy, SegmentChanged
from topics.formats.records import Record
from topics.spark import schemas
from topics.spark.manifest import Manifest, decode_manifest
from topics.spark.options import ReadOptions, parse_options
from topics.spark.reading.locate import read_partition
from topics.spark.reading.plan import Partition, plan_batch
from topics.spark.reading.source import take_manifests

SEGMENT_EVENTS = 100
TOPIC = "t"
# Written to whenever a checkpoint is wanted.
BYSTANDER = "bystander"
NEVER_MS = 1 << 60
# Columns of a record as tests compare them.
Row = tuple[int, str | None, str | None, str | None, str | None]


class World:
    def __init__(self, server: Running, client: Client, root: Path) -> None:
        self.server = server
        self.client = client
        self.root = root
        self._numbers = itertools.count()

    @property
    def url(self) -> str:
        return self.server.url

    # What happens to topics.

    def fill(self, topic: str, count: int) -> None:
        """Records with and without tag, node and meta."""
        members = []
        for number in itertools.islice(self._numbers, count):
            record: dict[str, object] = {"data": {"n": number}}
            if number % 3:
                record["tag"] = f"t{number % 3}"
            if number % 5 == 0:
                record["node"] = f"node{number % 2}"
            if number % 7 == 0:
                record["meta"] = {"k": "m" * (number % 11)}
            members.append(record)
        self.client.append_encoded(topic, msgspec.json.encode(members))

    def checkpoint(self) -> None:
        """What is in the log goes to segments; full ones are sealed. Twice, as two snapshots are kept: files that
        neither of them needs go."""
        for _ in range(2):
            # One without news would be left out.
            self.client.append_encoded(BYSTANDER, b'[{"data":0}]')
            self.server.call(self._checkpoint())

    async def _checkpoint(self) -> None:
        opened = self.server.server.app.opened
        assert opened is not None
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        opened.checkpointer.start(done.set_result)
        assert await done is None

    def relocate(self) -> list[str]:
        """Lets the server move what is old to the cold tier, and take its hot files away; the tiers of the segments."""
        self.checkpoint()
        self.server.call(self._relocate())
        self.checkpoint()
        # The checkpoint has begun the removal of hot files, on the thread that copies.
        self.server.call(self._relocate())
        return [found.tier for found in self.manifest(TOPIC).segments]

    async def _relocate(self) -> None:
        opened = self.server.server.app.opened
        assert opened is not None
        relocator = opened.relocator
        relocator._retry_at_ms = 0
        before = -1
        while before != relocator.moved_total:
            before = relocator.moved_total
            relocator.tick()
            # The thread that copies does one thing after the other, and answers on the loop.
            done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            relocator._background.run(lambda: None, done.set_result)
            await done
        relocator._retry_at_ms = NEVER_MS

    async def hold_moves(self) -> None:
        """The server itself moves nothing: it looks for segments to move once a second."""
        opened = self.server.server.app.opened
        assert opened is not None
        opened.relocator._retry_at_ms = NEVER_MS

    def purge(self, topic: str) -> int:
        """Rewrites every sealed segment without its deleted records, but for the last one of each; how many."""
        picture = self.manifest(topic)
        staging = self.root / "staging"
        staging.mkdir(exist_ok=True)
        count = 0
        for found in picture.segments:
            if not found.sealed or found.tier != "hot":
                continue
            data, idx = rewritten(
                Path(found.uri.removeprefix("file://")).read_bytes(),
                found.first_seq,
                found.records,
                lambda frame, last_seq=found.last_seq: not frame.deleted or frame.seq == last_seq,  # type: ignore[misc]
            )
            (staging / "p.data").write_bytes(data)
            (staging / "p.idx").write_bytes(idx)
            # The server goes on with its own work: one that is moved or pinned by now stays as it is.
            with contextlib.suppress(SegmentChanged, SegmentBusy):
                self.client.replace_segment(
                    topic_id=picture.topic_id,
                    epoch=picture.epoch,
                    first_seq=found.first_seq,
                    expect_digest=found.digest,
                    data="p.data",
                    idx="p.idx",
                )
                count += 1
        return count

    # What there is.

    def manifest(self, topic: str) -> Manifest:
        return decode_manifest(self.client.manifest(topic))

    def files(self, topic: str) -> list[Path]:
        """Of the segments that are in a folder."""
        return [Path(found.uri.removeprefix("file://")) for found in self.manifest(topic).segments]

    def rows(self, topic: str, last_seq: int | None = None) -> list[Row]:
        """What a diff from the beginning gives, up to a seq."""
        found: list[Row] = []
        cursor, head_seq = 0, self.client.state(topic).head_seq
        last_seq = head_seq if last_seq is None else last_seq
        while cursor < last_seq:
            page = self.client.read(topic, cursor, limit=1000)
            found += [_row(record) for record in page.records if record.seq <= last_seq]
            cursor = page.next_from_seq
        return found

    def options(self, **given: object) -> ReadOptions:
        return batch_options(**given) if "path" in given else batch_options(**{"endpoint": self.url, **given})


def _row(record: Record) -> Row:
    return (
        record.seq,
        record.node,
        record.tag,
        record.data.decode(),
        None if record.meta is None else record.meta.decode(),
    )


@contextmanager
def world(folder: Path, **settings: Any) -> Iterator[World]:
    root = folder / "data"
    settings = {"segment_max_events": SEGMENT_EVENTS, **settings}
    with running(root, **settings) as server, Client(server.url, retries=2) as client:
        client.create(TOPIC)
        client.create(BYSTANDER)
        made = World(server, client, root)
        server.call(made.hold_moves())
        yield made


# Reading without Spark, as its driver and tasks do.


def batch_options(**given: object) -> ReadOptions:
    return parse_options({name: str(value) for name, value in given.items()}, mode="batch")


def plan(options: ReadOptions) -> list[Partition]:
    return plan_batch(take_manifests(options), options)


def read_rows(partition: Partition, options: ReadOptions) -> list[dict[str, Any]]:
    return [
        row for batch in read_partition(partition, options, schemas.schema_of(options)) for row in batch.to_pylist()
    ]


def short(rows: list[Mapping[str, Any]] | list[dict[str, Any]]) -> list[Row]:
    """The columns that `World.rows` has. A gap is no record."""
    return [(row["seq"], row["node"], row["tag"], row["data"], row["meta"]) for row in rows if row.get("kind") != "gap"]


def gaps(rows: list[dict[str, Any]]) -> list[tuple[int, int | None, str]]:
    return [(row["seq"], row["gap_to"], row["gap_reason"]) for row in rows if row.get("kind") == "gap"]


def read(options: ReadOptions) -> list[dict[str, Any]]:
    return [row for partition in plan(options) for row in read_rows(partition, options)]
