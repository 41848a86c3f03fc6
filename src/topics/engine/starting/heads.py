"""Head seqs after the replay: which seqs are lost, and where each topic goes on."""

from dataclasses import dataclass
from typing import NamedTuple

from topics.engine.engine import Engine
from topics.engine.starting.report import RecoveryReport
from topics.engine.topic.topic import Topic
from topics.formats import control, wal_frame
from topics.formats.wal_frame import FrameType


class FrameToLog(NamedTuple):
    """A frame that recovery made. It must be durable before the engine serves."""

    topic_id: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class ResumedHeads:
    # One HEAD frame for each topic that lost seqs with the power.
    frames: list[FrameToLog]


def resume_heads(engine: Engine, report: RecoveryReport) -> ResumedHeads:
    """After a power loss no seq below a synced ceiling is handed out twice: reserved seqs become a lost range."""
    frames: list[FrameToLog] = []
    for topic in engine.topics.values():
        _lose_unlogged(topic)
        if not engine.directory.power_was_lost:
            continue
        assert topic.replayed is not None
        # Copies of a router that an unfinished checkpoint put into segments have no frames, and are not lost.
        first, last = max(topic.head_seq + 1, topic.replayed.end_seq), topic.ceiling - 1
        if last < first:
            continue
        report.lost_seqs += last - first + 1
        report.warn(
            f'topic "{topic.name}": seqs {first} to {last} may have been lost with the power; readers get a tombstone'
        )
        _lose_reserved(topic, first, last)
        head = control.encode(control.Head(topic.ceiling, first))
        frames.append(FrameToLog(topic.id, wal_frame.encode_control(FrameType.HEAD, topic.id, engine.now_ms(), head)))
    engine.lost_seqs_total = report.lost_seqs
    return ResumedHeads(frames)


def _lose_reserved(topic: Topic, first: int, last: int) -> None:
    """Seqs that were reserved and may have been answered, and whose records are not in the log."""
    topic.lost.append((first, last))
    topic.head_seq = last


def _lose_unlogged(topic: Topic) -> None:
    """Records that an ephemeral topic had above its last checkpoint were only in memory: they are a lost range."""
    assert topic.replayed is not None
    first = topic.replayed.end_seq
    if topic.head_seq < first:
        return
    # A lost range of an earlier process that touches this one becomes part of it.
    while topic.lost and topic.lost[-1][1] >= first - 1:
        first = min(first, topic.lost.pop()[0])
    topic.lost.append((first, topic.head_seq))
