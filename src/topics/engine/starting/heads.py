"""Head seqs after the replay: which seqs are lost, and where each topic goes on."""

from dataclasses import dataclass
from typing import NamedTuple

from topics.engine.engine import Engine
from topics.engine.starting.report import RecoveryReport
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
        topic.live.lose_unlogged()
        if not engine.directory.power_was_lost:
            continue
        assert topic.live.replayed is not None
        # Copies of a router that an unfinished checkpoint put into segments have no frames, and are not lost.
        first, last = max(topic.head_seq + 1, topic.live.replayed.end_seq), topic.writes.ceiling - 1
        if last < first:
            continue
        report.add_lost(last - first + 1)
        report.warn(
            f'topic "{topic.name}": seqs {first} to {last} may have been lost with the power; readers get a tombstone'
        )
        topic.live.note_lost(first, last)
        topic.live.raise_head(last)
        head = control.encode(control.Head(topic.writes.ceiling, first))
        frames.append(FrameToLog(topic.id, wal_frame.encode_control(FrameType.HEAD, topic.id, engine.now_ms(), head)))
    return ResumedHeads(frames)
