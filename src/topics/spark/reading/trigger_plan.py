"""Plans one trigger of a streaming query: where the query begins, where the next batch ends, and its partitions.

Cuts are chosen once, when a batch is planned, and are kept in its offset. Files are moved, sealed and rewritten between
two attempts of a batch, and both attempts must be split in the same way. So `partitions_between` chooses no cuts: it
takes the cuts of the offset, and looks up which files cover them now.

Spark compares offsets as text. So their form is canonical: keys are sorted, nothing in it changes by itself, and the
same value is returned when there is nothing new.

Pure: no Spark, no clock, no files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from topics.errors import InvalidRequest
from topics.spark.loss import Gap, accept_gaps, check_cursor, find_gaps
from topics.spark.manifest import SEQS, Manifest, Numbering
from topics.spark.options import ReadOptions
from topics.spark.reading.plan import (
    Partition,
    choose_cuts,
    cut_partitions,
    last_seq_within,
    range_bytes,
    split_further,
    starting_cursor,
    visible_head,
)

OFFSET_VERSION: Final = 1
TOPICS_PER_QUERY_MAX: Final = 10_000


class TopicOffset(NamedTuple):
    """How far a topic is read: `seq` is the last seq. `cuts` belong to the batch that ends here, without its end."""

    epoch: int
    seq: int
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Offset:
    """How far every topic of a query is read."""

    topics: Mapping[str, TopicOffset]

    def as_json(self, numbering: Numbering = SEQS) -> dict[str, Any]:
        """The canonical form: the same offset is always the same text."""
        subject, unit, _ = numbering
        # These keys are in sorted order, for topics and for partitions.
        return {
            f"{subject}s": {
                name: {"cuts": list(topic.cuts), "epoch": topic.epoch, unit: topic.seq}
                for name, topic in sorted(self.topics.items())
            },
            "v": OFFSET_VERSION,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], numbering: Numbering = SEQS) -> "Offset":
        """Raises `InvalidRequest` for an offset of another version, or of another program."""
        subject, unit, _ = numbering
        version = value.get("v")
        if version != OFFSET_VERSION:
            raise InvalidRequest(
                f"the checkpoint has offsets of version {version!r}, this is version {OFFSET_VERSION}: "
                "read on with the version of topics that wrote them, or begin a new checkpoint"
            )
        try:
            return Offset(
                {
                    name: TopicOffset(int(topic["epoch"]), int(topic[unit]), tuple(map(int, topic["cuts"])))
                    for name, topic in value[f"{subject}s"].items()
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(f"the checkpoint has offsets that are not ours: {error!r}") from error


def initial_offset(manifests: Sequence[Manifest], options: ReadOptions) -> Offset:
    """Where a new query begins. Call it once for each query, because heads move."""
    _check_topic_count(len(manifests))
    topics = {}
    for manifest in manifests:
        cursor = starting_cursor(manifest, options)
        check_cursor(manifest, cursor)
        topics[manifest.topic] = TopicOffset(manifest.epoch, cursor)
    return Offset(topics)


def heads(manifests: Iterable[Manifest]) -> Offset:
    """The end of every topic, which shows how much a query has not read yet."""
    return Offset({manifest.topic: TopicOffset(manifest.epoch, manifest.head_seq) for manifest in manifests})


class _Lag(NamedTuple):
    """The seqs after the cursor that a topic has and that can be read."""

    manifest: Manifest
    cursor: int
    first_seq: int
    last_seq: int

    @property
    def record_count(self) -> int:
        return max(0, self.last_seq - self.first_seq + 1)


def next_offset(
    start: Offset,
    manifests: Mapping[str, Manifest],
    options: ReadOptions,
    *,
    read_all: bool = False,
    ceilings: Mapping[str, int] | None = None,
    may_wait: bool = False,
) -> Offset:
    """Where the next batch ends; `start` itself when there is nothing new.

    `manifests` has every topic that exists. `read_all` ignores the limits. `ceilings` are the last seqs to read;
    topics without a ceiling are not read. With `may_wait` a small batch waits for more records.
    Raises `TopicsDataLoss` for lost records, unless gaps may be rows.
    """
    _check_topic_count(len(manifests))
    lags: dict[str, _Lag] = {}
    ended: dict[str, TopicOffset] = {}
    for name in sorted(start.topics.keys() | manifests.keys()):
        known, manifest = start.topics.get(name), manifests.get(name)
        if manifest is None:
            assert known is not None
            accept_gaps([_deleted_gap(name, known, options)], options.gaps)
            continue  # The topic leaves the offset. `partitions_between` makes its gap row.
        if ceilings is not None and name not in ceilings:
            if known is not None:
                ended[name] = known
            continue
        cursor = _cursor(known, manifest, options)
        last_seq = visible_head(manifest, options)
        if ceilings is not None:
            last_seq = min(last_seq, ceilings[name])
        accept_gaps(find_gaps(manifest, cursor, last_seq), options.gaps, manifest)
        first_seq = max(cursor + 1, min(manifest.first_seq, last_seq + 1))
        lags[name] = _Lag(manifest, cursor, first_seq, last_seq)
    if may_wait and sum(lag.record_count for lag in lags.values()) < (options.min_records_per_trigger or 0):
        return start
    last_seqs = {name: lag.last_seq for name, lag in lags.items()} if read_all else _limited(lags, options)
    ended |= _ended(lags, last_seqs, options)
    end = Offset(ended)
    return start if _is_same(start, end) else end


def _cursor(known: TopicOffset | None, manifest: Manifest, options: ReadOptions) -> int:
    """The last seq that was read of this instance. A topic that is new to the query begins with its first seq."""
    if known is None:
        return manifest.numbering.first - 1
    if known.epoch != manifest.epoch:
        accept_gaps([_recreated_gap(known, manifest)], _on_recreated(options), manifest)
        return manifest.numbering.first - 1
    check_cursor(manifest, known.seq)
    return known.seq


def _on_recreated(options: ReadOptions) -> Literal["fail", "rows"]:
    return "rows" if options.on_recreated == "restart" and options.gaps == "rows" else "fail"


def _recreated_gap(known: TopicOffset, manifest: Manifest) -> Gap:
    numbering = manifest.numbering
    ts = manifest.time_near(numbering.first)
    return Gap(manifest.topic, known.seq + 1, None, "recreated", ts, numbering)


def _deleted_gap(name: str, known: TopicOffset, options: ReadOptions) -> Gap:
    return Gap(name, known.seq + 1, None, "topic_deleted", numbering=options.numbering)


def _limited(lags: Mapping[str, _Lag], options: ReadOptions) -> dict[str, int]:
    """The last seq of each topic within the limits of a trigger: in proportion to its lag, at least one record."""
    ends = {name: lag.last_seq for name, lag in lags.items()}
    lagging = {name: lag for name, lag in lags.items() if lag.record_count}
    if options.max_records_per_trigger is not None:
        shares = proportional_shares(
            {name: lag.record_count for name, lag in lagging.items()}, options.max_records_per_trigger
        )
        ends |= {name: lagging[name].first_seq + share - 1 for name, share in shares.items()}
    if options.max_bytes_per_trigger is not None:
        sizes = {name: max(1, range_bytes(lag.manifest, lag.first_seq, lag.last_seq)) for name, lag in lagging.items()}
        shares = proportional_shares(sizes, options.max_bytes_per_trigger)
        for name, share in shares.items():
            if share < sizes[name]:
                lag = lagging[name]
                ends[name] = min(ends[name], last_seq_within(lag.manifest, lag.first_seq, lag.last_seq, share))
    return ends


def proportional_shares(amounts: Mapping[str, int], limit: int) -> dict[str, int]:
    """The limit as shares: 1 for each name, the rest in proportion. With more names than the limit, 1 for each.

    What rounding leaves goes to the largest remainders, then to the first names, so that the result is deterministic.
    """
    total = sum(amounts.values())
    if total <= limit:
        return dict(amounts)
    rest, rest_total = max(0, limit - len(amounts)), max(1, total - len(amounts))
    shares = {name: 1 + rest * (amount - 1) // rest_total for name, amount in amounts.items()}
    left = rest - (sum(shares.values()) - len(amounts))
    by_remainder = sorted(amounts, key=lambda name: (-(rest * (amounts[name] - 1) % rest_total), name))
    for name in by_remainder[:left]:
        shares[name] += 1
    return shares


def _ended(lags: Mapping[str, _Lag], last_seqs: Mapping[str, int], options: ReadOptions) -> dict[str, TopicOffset]:
    cuts = {
        name: choose_cuts(lag.manifest, lag.first_seq, last_seqs[name], options)
        for name, lag in lags.items()
        if lag.first_seq <= last_seqs[name]
    }
    split_further(cuts, {name: lags[name].first_seq for name in cuts}, options.min_partitions or 0)
    return {
        # Never below the cursor: with `isolation=durable` the head may be below seqs that were read without it.
        name: TopicOffset(lag.manifest.epoch, max(lag.cursor, last_seqs[name]), tuple(cuts.get(name, ())[:-1]))
        for name, lag in lags.items()
    }


def _is_same(start: Offset, end: Offset) -> bool:
    """Whether a batch between them would be empty."""
    if start.topics.keys() != end.topics.keys():
        # The instance of a new topic is kept in the offset, also when the topic is empty.
        return False
    return all(topic[:2] == end.topics[name][:2] for name, topic in start.topics.items())


def partitions_between(
    start: Offset, end: Offset, manifests: Mapping[str, Manifest], options: ReadOptions
) -> list[Partition]:
    """The partitions of a batch, with the cuts of `end`. Gaps are looked for again, because they may have grown.

    `manifests` are new ones. A topic of `end` without a manifest is gone: its seqs are a gap.
    """
    made: list[Partition] = []
    for name in sorted(start.topics.keys() | end.topics.keys()):
        known, target, manifest = start.topics.get(name), end.topics.get(name), manifests.get(name)
        if target is None:
            assert known is not None
            gaps = accept_gaps([_deleted_gap(name, known, options)], options.gaps)
            made.append(_gaps_alone(name, known.epoch, gaps))
            continue
        if known is not None and known[:2] == target[:2]:
            continue
        made += _topic_between(name, known, target, manifest, options)
    return made


def _topic_between(
    name: str, known: TopicOffset | None, target: TopicOffset, manifest: Manifest | None, options: ReadOptions
) -> list[Partition]:
    is_new_instance = known is not None and known.epoch != target.epoch
    numbering = options.numbering
    cursor = numbering.first - 1 if known is None or is_new_instance else known.seq
    # The topic may be gone since the batch was planned.
    if manifest is None:
        deleted = Gap(name, cursor + 1, target.seq, "topic_deleted", numbering=numbering)
        gaps = accept_gaps([deleted], options.gaps)
        return [_gaps_alone(name, target.epoch, gaps)]
    if manifest.epoch != target.epoch:
        recreated = Gap(name, cursor + 1, target.seq, "recreated", numbering=numbering)
        gaps = accept_gaps([recreated], _on_recreated(options), manifest)
        return [_gaps_alone(name, target.epoch, gaps)]
    check_cursor(manifest, target.seq)
    gaps = []
    if is_new_instance:
        assert known is not None
        gaps += accept_gaps([_recreated_gap(known, manifest)], _on_recreated(options), manifest)
    gaps += accept_gaps(find_gaps(manifest, cursor, target.seq), options.gaps, manifest)
    cuts = [cut for cut in (*target.cuts, target.seq) if cut > cursor]
    return cut_partitions(manifest, cursor + 1, cuts, gaps)


def _gaps_alone(topic: str, epoch: int, gaps: Sequence[Gap]) -> Partition:
    """A partition for a topic that cannot be read."""
    first_seq = gaps[0].first_seq
    return Partition(
        topic=topic,
        store_id="",
        topic_id=0,
        epoch=epoch,
        first_seq=first_seq,
        last_seq=first_seq - 1,
        tail_first_seq=first_seq,
        gaps=tuple(gaps),
    )


def _check_topic_count(count: int) -> None:
    if count > TOPICS_PER_QUERY_MAX:
        raise InvalidRequest(
            f"{count} topics are more than the {TOPICS_PER_QUERY_MAX} that one query reads: "
            "offsets of all are written with every batch. Subscribe to fewer, in several queries"
        )
