"""Consumer groups of another log as groups of the topic: the cursor of each is the last record that it is done with."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from topics.cli.output import message
from topics.cli.remote.importing.ledger import meta_of
from topics.cli.remote.importing.source import Reader, Source
from topics.errors import GroupNotFound, InvalidRequest
from topics.limits import READ_LIMIT_MAX

if TYPE_CHECKING:
    from topics.client.sync.client import Client

# Records that a probe looks at, at first: usually the next one is of the import.
_PROBE_RECORDS: Final = 1


def take_over(client: "Client", topic: str, source: Source) -> int:
    """Creates or advances a group of the topic for each group of the source. A cursor never moves back: readers of the
    topic may be further by now. Returns how many groups there are."""
    count = 0
    for reader in source.readers():
        seq = 0 if reader.done is None else _seq_up_to(client, topic, source, reader.done)
        try:
            _put(client, topic, source, reader, seq)
        except InvalidRequest as error:
            message(f'topics: warning: group "{reader.name}" is left out: {error.message}')
            continue
        count += 1
    return count


def _put(client: "Client", topic: str, source: Source, reader: Reader, seq: int) -> None:
    try:
        known = client.group(topic, reader.name)
    except GroupNotFound:
        made = client.create_group(topic, reader.name, at=seq)
        again = "" if not reader.pending else f"; {reader.pending} of its entries are not acknowledged and come again"
        if source.is_partitioned and made.cursor.lag:
            again = "; entries that it has read in other partitions may come again"
        told = f"seq {made.cursor.seq}, lag {made.cursor.lag}{again}"
        message(f'group "{reader.name}" is created: {told}')
        return
    if seq > known.seq:
        cursor = client.commit(topic, reader.name, seq).cursor
        message(f'group "{reader.name}" is at seq {cursor.seq}, lag {cursor.lag}')


def _seq_up_to(client: "Client", topic: str, source: Source, done: str) -> int:
    """The seq of the last record of the source before the first one whose entry is beyond `done`; 0 if there is none.

    By halves: the entries of one source, or of each of its partitions, are in the topic in their order. Records of
    others may be between them.
    """
    state = client.state(topic)
    # Records up to `low` are not beyond it; those from `high` on are beyond it, cannot tell, or are not there.
    low, high = 0, state.head_seq + 1
    first_beyond = 0
    while high - low > 1:
        middle = (low + high) // 2
        found = next(_telling(client, topic, source, done, middle - 1, high), None)
        if found is None or found.is_beyond:
            first_beyond = first_beyond if found is None else found.seq
            high = middle
        else:
            low = found.seq
    if not first_beyond:
        return low
    # Between them are records that could not tell it of those before. One after the other they can.
    silent = _of_source(client, topic, source, low, first_beyond)
    return max((seq for seq, _ in silent), default=low)


class _Found(NamedTuple):
    seq: int
    is_beyond: bool


def _telling(client: "Client", topic: str, source: Source, done: str, after_seq: int, end_seq: int) -> Iterator[_Found]:
    """The records of the source between these seqs that tell whether they are beyond `done`."""
    for seq, meta in _of_source(client, topic, source, after_seq, end_seq):
        is_beyond = source.is_beyond(meta, done)
        if is_beyond is not None:
            yield _Found(seq, is_beyond)


def _of_source(
    client: "Client", topic: str, source: Source, after_seq: int, end_seq: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Seq and meta of the records of the source between these seqs."""
    limit = _PROBE_RECORDS
    while after_seq + 1 < end_seq:
        page = client.read(topic, after_seq, limit=limit)
        for record in page.records:
            if record.seq >= end_seq:
                return
            meta = meta_of(record, source.name)
            if meta is not None:
                yield record.seq, meta
        if page.caught_up:
            return
        after_seq, limit = page.next_from_seq, READ_LIMIT_MAX
