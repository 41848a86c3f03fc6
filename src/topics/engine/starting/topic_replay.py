"""One topic while the WAL is read. Frames are applied once: records that segments or the replay already hold are
skipped.

A write comes back whole or not at all. Its records count once its last frame is read. An unfinished write is taken
back when the next frame of the topic begins another write, or when the log ends. Live records are counted after the
replay (`finishing`): the replay keeps only places of records, floors and delete marks.
"""

import re
from array import array
from typing import Final

from topics.engine.config import stored_config
from topics.engine.groups import apply_update
from topics.engine.starting.adopted_records import AdoptedRecords
from topics.engine.starting.replayed_router import ReplayedRouter
from topics.engine.topic.hops import HopRuns
from topics.engine.topic.replayed import WalFiles
from topics.engine.topic.topic import Topic
from topics.errors import ColdUnavailable, StartRefused
from topics.formats import control, envelope, kernel
from topics.formats.record_layout import FLAG_TAG
from topics.formats.snapshot import WriterState
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, HEADER_BYTES, Frame, FrameColumns

HEAD_SEQ_MAX: Final = 2**64 - 1

# Fewer frames than this are not worth taking by the column.
RUN_FRAMES_MIN: Final = 16
# A frame's part in its write: S a write of one frame, F first, M middle, L last of several.
_SHAPES: Final = bytes(b"LSMF"[(flags >> 4 & 1) + (flags >> 3 & 1) * 2] for flags in range(256))
# Whole writes, then the beginning of one.
_WRITES: Final = re.compile(rb"(?:S|FM*L)*(?:FM*)?")
# The same after the rest of a write that began earlier, or only more of its middle.
_REST_AND_WRITES: Final = re.compile(rb"M*(?:L(?:S|FM*L)*(?:FM*)?)?")
assert (FLAG_FIRST, FLAG_MORE) == (16, 8)


class TopicReplay:
    __slots__ = (
        "adopted",
        "asks_tier",
        "bridge",
        "copies",
        "evict",
        "first_seq",
        "key",
        "last_seq",
        "late_head",
        "lost",
        "moved",
        "moves",
        "needs_recount",
        "next_seq",
        "open_seq",
        "open_tags",
        "replayed",
        "routers",
        "topic",
        "writer",
    )

    def __init__(self, topic: Topic, wal_files: WalFiles, adopted: AdoptedRecords | None = None) -> None:
        self.topic = topic
        # Records that segments already hold although no snapshot says so.
        self.adopted = adopted
        self.replayed = topic.live.begin_replay(wal_files)
        self.next_seq = self.replayed.first_seq
        # First seq of the write whose last frame was not read yet; None when no write is open.
        self.open_seq: int | None = None
        self.open_tags: dict[bytes, array[int]] = {}
        # A frame of a power loss whose range begins above the next seq: see `head`.
        self.late_head: control.Head | None = None
        # First and last seq of the open write, also when segments already hold its records: a key's answer names them.
        self.first_seq = self.last_seq = 0
        self.key: str | None = None
        self.writer: control.WriterEpoch | None = None
        self.bridge: control.BridgeUpdate | None = None
        self.evict: control.Evict | None = None
        self.lost: control.Lost | None = None
        # The records of another topic that the open write moves to this one.
        self.moved: control.Moved | None = None
        # The records that all finished writes have moved to this topic.
        self.moves: list[control.Moved] = []
        # Routers whose dest is this topic.
        self.routers: list[ReplayedRouter] = []
        # What the open write says about the copies of one router.
        self.copies: control.Copies | None = None
        # Whether delete marks of segments changed: their live records must be counted again.
        self.needs_recount = False
        # Whether a segment was hot when the log was written, and only the cold tier has it now: deletes do not name its
        # records.
        self.asks_tier = bool(topic.live.segments.inexact)

    def expect_unlogged(self) -> None:
        """Any record of the topic may have no frame."""
        if self.adopted is not None:
            self.adopted.expect_unlogged()

    # Writes.

    def begin(self, seq: int) -> None:
        """Begins a write whose first record has this seq. 0: the frame has no record."""
        self.drop_open()
        self.open_seq = max(seq, self.next_seq) if seq else self.next_seq

    def drop_open(self) -> None:
        """Takes back a write that was not finished."""
        if self.open_seq is not None and self.open_seq < self.next_seq:
            self.replayed.truncate(self.open_seq)
            self.next_seq = self.open_seq
        if self.adopted is not None:
            self.adopted.drop_write()
        self.open_seq = None
        self.open_tags.clear()
        self.first_seq = self.last_seq = 0
        self.key = None
        self.writer = None
        self.bridge = None
        self.evict = None
        self.lost = None
        self.moved = None
        self.copies = None

    def finish(self, ts: int) -> None:
        """The write is whole: its records count."""
        topic = self.topic
        if self.adopted is not None:
            self.adopted.finish_write()
        if self.late_head is not None:
            self._jump_before(max(self.lost.first_seq if self.lost else 0, self.copies.dest_seq if self.copies else 0))
        if self.lost is not None:
            self._lose(self.lost)
        if self.routers:
            self._finish_copies()
        topic.live.note_replayed(self.next_seq - 1)
        topic.writes.note_time(ts)
        if self.open_tags:
            topic.live.tags.add_all(self.open_tags)
            self.open_tags = {}
        if self.key is not None and self.first_seq:
            count = self.last_seq - self.first_seq + 1
            topic.keys.note(self.key, ts, self.first_seq, count, self.last_seq)
        if self.writer is not None:
            name, first_seq = self.writer.writer, self.writer.first_seq
            topic.writers[name] = WriterState(name, self.writer.epoch, first_seq, self.last_seq or first_seq - 1)
            self.writer = None
        if self.bridge is not None:
            topic.links.apply_bridge(self.bridge)
            self.bridge = None
        if self.evict is not None:
            topic.live.note_floors(cap_floor=self.evict.cap_floor, ttl_floor=self.evict.ttl_floor)
        if self.moved is not None:
            self.moves.append(self.moved)
            self.moved = None
        self.open_seq = None
        self.first_seq = self.last_seq = 0
        self.key = None
        self.evict = None
        self.lost = None

    def _lose(self, lost: control.Lost) -> None:
        """The range is lost also when an unfinished checkpoint has put records with higher seqs into segments."""
        self.topic.live.note_lost(lost.first_seq, lost.last_seq, "source_trim")
        if self.routers:
            hops = [(lost.first_seq, lost.last_seq, lost.hops)] if lost.hops else []
            self.copies = control.Copies(lost.router, lost.cursor, lost.last_seq, lost.forwarded_total, hops)
        if lost.last_seq >= self.next_seq:
            self._append_holes(lost.last_seq)

    def _finish_copies(self) -> None:
        """A write to the dest of routers: later copies follow its last record. The cursor is the one that the write
        names, or stays."""
        copies, last_seq = self.copies, self.last_seq
        self.copies = None
        if self.evict is not None and self.evict.trim_floor:
            # Older versions: the floor takes all records of dest. The range is for routers that copy from dest.
            self.topic.live.note_floors(cap_floor=self.evict.trim_floor)
            self.topic.live.note_lost(self.evict.trim_first, self.evict.trim_floor, "source_trim")
            copies = self.evict.copies or copies
        if copies is not None:
            last_seq = max(last_seq, copies.dest_seq)
            if last_seq >= self.next_seq:
                # Copies that were dead when they were logged, or a source trim of an older version.
                self._append_holes(last_seq)
            for router in self.routers:
                if router.id == copies.router:
                    router.move(copies.cursor, copies.forwarded_total)
            if copies.hops:
                links = self.topic.links
                links.restore_hops([*_runs_below(links.hops, copies.hops[0][0]), *copies.hops])
        for router in self.routers:
            router.note_dest_seq(last_seq)

    def _append_holes(self, last_seq: int) -> None:
        self.replayed.append_holes(last_seq + 1 - self.next_seq)
        self.next_seq = last_seq + 1

    # Control frames.

    def note(self, note: control.Note, ts: int) -> None:
        if note.group is not None:
            apply_update(self.topic.groups, note.group, ts)
        for key, key_ts, first_seq, count, head_seq in note.keys:
            if first_seq + count <= self.next_seq:
                # An unfinished checkpoint has put the records into segments. Without it they ended with the process.
                self.topic.keys.note(key, key_ts, first_seq, count, head_seq)
        self.key, self.moved, self.copies = note.key, note.moved, note.copies
        if note.dead_letter is not None:
            letter = note.dead_letter
            self.moved = control.Moved(letter.queue_id, [letter.seq], [letter.ts])
        self.writer, self.bridge = note.writer, note.bridge

    def note_evict(self, evict: control.Evict) -> None:
        self.evict = evict

    def note_lost(self, lost: control.Lost) -> None:
        self.lost = lost

    def lease(self, lease: control.Lease) -> None:
        assert self.topic.leases is not None
        self.topic.leases.replay(lease)

    def configure(self, update: control.ConfigUpdate, ts: int) -> None:
        self._jump_before(HEAD_SEQ_MAX)
        topic = self.topic
        topic.replay_config(stored_config(update.config), ts)
        if self.adopted is not None:
            self.adopted.expect_unlogged_to(update.unlogged_last_seq)
        topic.live.note_floors(cap_floor=update.cap_floor, ttl_floor=update.ttl_floor)
        if topic.leases is not None and not topic.config.leases_durable:
            # Later changes of these leases were not logged.
            topic.leases.forget_all()
        if update.unlogged_last_seq >= self.next_seq:
            # Records written while the topic was ephemeral were only in memory.
            topic.live.note_lost(self.next_seq, update.unlogged_last_seq)
            self._jump(update.unlogged_last_seq)

    def head(self, head: control.Head) -> None:
        topic = self.topic
        topic.writes.raise_ceiling(head.ceiling)
        if not head.lost_first:
            return
        self._jump_before(HEAD_SEQ_MAX)
        if head.lost_first > self.next_seq:
            # An unfinished checkpoint held the records before the range, and they were not taken in: the disk is full.
            # Derived copies among them may have frames that follow.
            self.late_head = head
        elif head.ceiling > self.next_seq:
            self._lose_to(head.ceiling - 1)
        else:
            # An unfinished checkpoint holds records with higher seqs than the range.
            topic.live.note_lost(head.lost_first, head.ceiling - 1)

    def _jump_before(self, seq: int) -> None:
        """`seq` comes next. If the range of `late_head` is below it, the head jumps over the range now. The range
        begins at the first seq that has no record."""
        head = self.late_head
        if head is not None and seq >= head.lost_first:
            self.late_head = None
            is_next_open = self.open_seq == self.next_seq
            self._lose_to(head.ceiling - 1)
            if is_next_open:
                self.open_seq = self.next_seq

    def _lose_to(self, last_seq: int) -> None:
        self.topic.live.note_lost(self.next_seq, last_seq)
        self._jump(last_seq)

    def end(self) -> None:
        """The log has no more frames."""
        self.drop_open()
        self._jump_before(HEAD_SEQ_MAX)
        if self.adopted is not None:
            self.adopted.check_end()

    def _jump(self, head_seq: int) -> None:
        """Raises the head over seqs without records. Derived copies with lower seqs are still valid: routers go on
        from their cursor, and their next copy follows the new head."""
        self._append_holes(head_seq)
        self.topic.live.raise_head(head_seq)

    def take_mark(self, mark: control.TopicMark, *, ends_damaged: bool) -> None:
        """No snapshot was readable, and the topic was rebuilt from its files: what the checkpoint knew of it.

        `ends_damaged`: the last file of the topic is damaged. Else seqs that the files do not have were dead.
        """
        self._jump_before(HEAD_SEQ_MAX)
        if mark.seq >= self.next_seq:
            if ends_damaged:
                self.topic.live.note_lost(self.next_seq, mark.seq)
            self._jump(mark.seq)
        if mark.hops:
            links = self.topic.links
            later = links.hops.within(mark.hops[-1][1] + 1, HEAD_SEQ_MAX) if links.hops is not None else []
            links.restore_hops([*mark.hops, *later])

    def delete(self, delete: control.Delete) -> None:
        """Marks the records that a logged delete removed. Which of them were live is counted after the replay."""
        self._jump_before(HEAD_SEQ_MAX)
        topic, replayed = self.topic, self.replayed
        topic.live.note_floors(ttl_floor=delete.ttl_floor)
        bound = delete.bound if delete.before_seq is None else min(delete.bound, delete.before_seq)
        segments = topic.live.segments
        for deaths in delete.cold or ():
            self._forget_leases(segments.replay_deaths(deaths))
        # A frame of an older version does not name the records of cold segments: the tier must be asked.
        waits_for_cold = delete.cold is None or self.asks_tier
        if delete.seqs is not None:
            seqs = [seq for seq in sorted(delete.seqs) if seq < delete.bound]
            if not waits_for_cold:
                seqs = [seq for seq in seqs if not segments.is_cold(seq)]
        elif delete.tag is not None:
            seqs = self._tagged(delete.tag, bound, is_prefix=False, waits_for_cold=waits_for_cold)
        elif delete.tag_prefix is not None:
            seqs = self._tagged(delete.tag_prefix, bound, is_prefix=True, waits_for_cold=waits_for_cold)
        else:
            topic.live.note_delete_below(min(bound, self.next_seq))
            return
        active = topic.live.active_segment()
        if delete.seqs is None and active is not None and active.tagged_count:
            # An unfinished checkpoint may have set the delete bytes already. The tags of the active segment come from
            # its live frames, so they do not name these records, but the noted numbers still count them.
            self.needs_recount = True
        for seq in seqs:
            if replayed.first_seq <= seq < replayed.end_seq:
                replayed.kill(seq)
        self._forget_leases(seqs)
        filed = [seq for seq in seqs if seq <= topic.live.checkpointed_seq]
        if waits_for_cold:
            segments.kill_many([seq for seq in filed if segments.is_cold(seq)])
        if filed:
            segments.mark_pending(filed)
            self.needs_recount = True

    def _tagged(self, tag: str, end_seq: int, *, is_prefix: bool, waits_for_cold: bool) -> list[int]:
        topic = self.topic
        try:
            return topic.live.tagged_seqs(
                tag.encode(), is_prefix=is_prefix, end_seq=end_seq, waits_for_cold=waits_for_cold
            )
        except ColdUnavailable as error:
            raise StartRefused(
                f'a delete in topic "{topic.name}" needs the cold tier, which does not answer: {error.message}; '
                "bring it back, then start again"
            ) from error

    def _forget_leases(self, seqs: list[int]) -> None:
        if self.topic.leases is not None:
            for seq in seqs:
                self.topic.leases.forget(seq)

    # Append frames.

    def append_all(self, path: str, buffer: bytes, base: int, frames: FrameColumns) -> None:
        """Append frames of this topic that follow each other. `base` is the offset of the buffer in the file."""
        for frame in frames:
            self._append_one(path, buffer, base, frame)

    def append_run(self, path: str, buffer: bytes, base: int, frames: FrameColumns, start: int, end: int) -> bool:
        """`append_all` by the column, for a run of `kernel.append_runs`. Returns False, and takes none, when the run
        does not continue the topic or its writes."""
        shape = frames.flags[start:end].translate(_SHAPES)
        is_open = self.open_seq is not None
        if not (_REST_AND_WRITES if is_open else _WRITES).fullmatch(shape):
            return False
        is_held = self.adopted is not None and frames.seqs[end - 1] < self.next_seq and self.late_head is None
        if frames.seqs[start] != self.next_seq and not is_held:
            return False
        # Frames up to `rest` end the open write, frames up to `whole` are whole writes, the others begin one.
        rest = start + (shape.find(b"L") + 1 if is_open else 0)
        whole = start + max(shape.rfind(b"S"), shape.rfind(b"L")) + 1
        for first, stop in ((start, rest), (rest, whole)):
            if first < stop:
                self._add_frames(path, buffer, base, frames, first, stop)
                self.finish(frames.times[stop - 1])
        if whole < end:
            if self.open_seq is None:
                self.begin(frames.seqs[whole])
            self._add_frames(path, buffer, base, frames, whole, end)
        return True

    def _add_frames(self, path: str, buffer: bytes, base: int, frames: FrameColumns, start: int, end: int) -> None:
        """Adds the records of one write or of several whole ones. Segments may already hold all of them."""
        offsets, seqs = frames.offsets, frames.seqs
        if seqs[start] < self.next_seq:
            if self.key is not None:
                self.first_seq = self.first_seq or seqs[start]
            self.last_seq = seqs[end - 1]
            self._meet(buffer, offsets[start:end], frames.ends[start:end], seqs[start])
            return
        places, lengths, sizes = kernel.frame_places(
            offsets, frames.ends, frames.data_lens, start, end, base, envelope.PLAIN_OVERHEAD_BYTES
        )
        if kernel.has_text(buffer, offsets[start], frames.ends[end - 1], envelope.META):
            sizes = array("I", [envelope.accounted_bytes(frame.data_in(buffer)) for frame in frames.part(start, end)])
        self.replayed.extend(path, places, lengths, sizes, frames.times[start:end])
        if self.key is not None:
            self.first_seq = self.first_seq or seqs[start]
        self.last_seq = seqs[end - 1]
        self.next_seq = self.last_seq + 1
        kernel.add_tags(buffer, frames, start, end, self.open_tags)

    def _meet(self, buffer: bytes, offsets: "array[int]", ends: "array[int]", first_seq: int) -> None:
        """Frames of records that segments already hold."""
        if self.adopted is not None:
            _, _, checksums = kernel.filed_frames(buffer, offsets, ends)
            self.adopted.meet(first_seq, checksums)

    def _append_one(self, path: str, buffer: bytes, base: int, frame: Frame) -> None:
        offset, end, _, flags, _, seq, ts, node_len, tag_len, _ = frame
        if flags & FLAG_FIRST:
            self.begin(seq)
        if self.late_head is not None:
            self._jump_before(seq)
        if self.key is not None:
            self.first_seq = self.first_seq or seq
        self.last_seq = seq
        expected = self.next_seq
        if seq >= expected:
            if seq > expected:
                self.replayed.append_holes(seq - expected)
            size = envelope.accounted_bytes(frame.data_in(buffer))
            self.replayed.append(path, base + offset, end - offset, size, ts)
            self.next_seq = seq + 1
            if flags & FLAG_TAG:
                tag_at = offset + HEADER_BYTES + node_len
                self.open_tags.setdefault(buffer[tag_at : tag_at + tag_len], array("Q")).append(seq)
        else:
            self._meet(buffer, array("q", [offset]), array("q", [end]), seq)
        if not flags & FLAG_MORE:
            self.finish(ts)


def _runs_below(hops: HopRuns | None, end_seq: int) -> list[tuple[int, int, int]]:
    return hops.within(0, end_seq - 1) if hops is not None else []
