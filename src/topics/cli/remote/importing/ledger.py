"""Writes each entry of another log once, however often an import is killed, and knows where the next one goes on.

rule 1  Batches are committed as epochs 1, 2, 3, … of a writer of the topic (see docs/http.md, staged writes). The topic
        keeps the number of the last one, and a repeated number adds nothing. So a batch whose answer was lost is not
        written twice, and of two imports at the same time only one writes each batch.
rule 2  Each record has the name of the other log and the position of its entry in `meta`. The last record of the last
        epoch says where to go on: of a log with partitions it has the last entry of each of them.
rule 3  That record may be gone by age, by a cap or by a delete. So the position is also committed by itself, as the
        epoch of a second writer, without records. It counts if it was committed after the last batch. Of a log with
        partitions each place has a writer of its own; then the second writer commits the number of the batch, and
        says by it that the places are those after that batch.
rule 4  If neither is known, nothing is written: the user is asked for the position.
"""

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import msgspec

from topics.cli.remote.importing.source import Entry, Source, SourceError
from topics.limits import META_BYTES_MAX, RECORD_BYTES_MAX

if TYPE_CHECKING:
    from topics.client.sync.client import Client

SOURCE_MEMBER: Final = "source"
POSITION_MEMBER: Final = "id"
# In the last record of each batch of a source with partitions: the last entry of each partition.
AFTER_MEMBER: Final = "after"

# A `Record`; the command line knows no formats.
Record = Any


class Place(NamedTuple):
    """Where an import is: after which entry, and after which epoch. `meta` is that of the record of the entry, as far
    as it is known."""

    position: str | None
    epoch: int
    meta: Mapping[str, Any] = MappingProxyType({})


class Written(NamedTuple):
    first_seq: int
    last_seq: int
    place: Place


class Ledger:
    def __init__(self, client: "Client", topic: str, source: Source) -> None:
        self._client = client
        self._topic = topic
        self._source = source
        digest = hashlib.sha256(source.name.encode()).hexdigest()[:32]
        self._writer = f"import:{digest}"
        self._position_writer = f"import:{digest}:position"
        # A chunk that an earlier process has staged for the same epoch must not be taken for one of this process.
        self._attempt = uuid4().int >> 65

    # Where to go on.

    def find(self, after: str | None) -> Place:
        """Where the last import ended. `after` is what the user says, for the case that nothing else knows it."""
        batch = self._epoch_of(self._writer)
        if batch is None:
            return Place(after, 0)
        meta = self._meta_at(batch.last_seq)
        position = meta.get(AFTER_MEMBER) or meta.get(POSITION_MEMBER)
        if position is None:
            position = self._noted(batch)
        position = position or after
        if position is None:
            raise SourceError(
                f'topic "{self._topic}" has entries of {self._source.name}, but record {batch.last_seq}, which knows '
                "where to go on, is gone; say it with --after ID: the last entry that was imported"
            )
        return Place(position, batch.epoch, meta)

    def _noted(self, batch: Any) -> str | None:
        """The position that was committed by itself, if it is the one after the last batch."""
        noted = self._epoch_of(self._position_writer)
        if noted is None:
            return None
        if not self._source.is_partitioned:
            return self._source.from_epochs({"": noted.epoch}) if noted.first_seq > batch.last_seq else None
        if noted.epoch != batch.epoch:
            return None
        places = {name: self._epoch_of(self._place_writer(name)) for name in self._source.partitions}
        return self._source.from_epochs({name: known.epoch for name, known in places.items() if known is not None})

    def _place_writer(self, partition: str) -> str:
        return f"{self._position_writer}:{partition}"

    def _epoch_of(self, writer: str) -> Any:
        return next((known for known in self._client.writer(writer).topics if known.topic == self._topic), None)

    def _meta_at(self, seq: int) -> Mapping[str, Any]:
        records = self._client.read(self._topic, seq - 1, limit=1).records if seq else []
        return meta_of(records[0], self._source.name) or {} if records and records[0].seq == seq else {}

    # Writing.

    def write(self, entries: Sequence[Entry], place: Place) -> Written | None:
        """None: another import has written this epoch, so that this one must look again where it is."""
        epoch = place.epoch + 1
        position = self._source.advance(place.position, entries)
        records = [self._record(entry) for entry in entries[:-1]]
        records.append(self._record(entries[-1], position if self._source.is_partitioned else None))
        head = {"writer": self._writer, "epoch": epoch, "part": 0, "attempt": self._attempt, "chunk": 0}
        chunk = msgspec.json.encode(head)[:-1] + b',"records":[' + b",".join(records) + b"]}"
        self._client.stage(self._topic, chunk)
        done = self._client.commit_epoch(
            self._writer, epoch, self._topic, [_part(attempt=self._attempt, chunks=1, records=len(records))]
        )
        if done.deduped and self.find(None).position != position:
            return None
        # The seqs of an epoch are known until the next one.
        assert done.first_seq is not None
        assert done.last_seq is not None
        return Written(done.first_seq, done.last_seq, Place(position, epoch))

    def note(self, place: Place) -> None:
        """Commits the position by itself: rule 3."""
        epochs = None if place.position is None else self._source.to_epochs(place.position)
        known = self._epoch_of(self._writer)
        if epochs is None or known is None or known.epoch != place.epoch:
            return
        if not self._source.is_partitioned:
            self._client.commit_epoch(self._position_writer, epochs[""], self._topic, [])
            return
        for partition, epoch in epochs.items():
            writer = self._place_writer(partition)
            done = self._client.commit_epoch(writer, epoch, self._topic, [])
            if done.deduped and self._epoch_of(writer).epoch != epoch:
                # Another import is further, or the user has said an earlier position.
                return
        self._client.commit_epoch(self._position_writer, place.epoch, self._topic, [])

    def _record(self, entry: Entry, after: str | None = None) -> bytes:
        meta = {SOURCE_MEMBER: self._source.name, POSITION_MEMBER: entry.position, **(entry.meta or {})}
        if after is not None:
            meta[AFTER_MEMBER] = after
        meta_text = msgspec.json.encode(meta)
        if len(meta_text) > META_BYTES_MAX:
            raise SourceError(
                f"entry {entry.position} has {len(meta_text)} bytes of headers and other meta, and a record has at "
                f"most {META_BYTES_MAX}"
            )
        members: dict[str, Any] = {"data": msgspec.Raw(entry.data), "meta": msgspec.Raw(meta_text)}
        if entry.tag is not None:
            members["tag"] = entry.tag
        text = msgspec.json.encode(members)
        if len(text) > RECORD_BYTES_MAX:
            raise SourceError(
                f"entry {entry.position} is a record of {len(text)} bytes, and a record has at most {RECORD_BYTES_MAX}"
            )
        return text


def meta_of(record: Record, source: str) -> dict[str, Any] | None:
    """The meta of a record that was an entry of the source; None for a record of another origin."""
    meta = {} if record.meta is None else msgspec.json.decode(record.meta)
    if not isinstance(meta, dict) or meta.get(SOURCE_MEMBER) != source:
        return None
    return meta if isinstance(meta.get(POSITION_MEMBER), str) else None


def _part(*, attempt: int, chunks: int, records: int) -> Any:
    from topics.client.calls import PartOfEpoch

    return PartOfEpoch(part=0, attempt=attempt, chunks=chunks, records=records)
