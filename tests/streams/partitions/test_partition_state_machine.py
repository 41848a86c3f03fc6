"""A partition against a list: appends, flushes, rolls, deletes, purges, polls, restarts, kills and power losses.

After every step all messages are polled by every strategy, and must be those of the list.
"""

import base64
import logging
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.conftest import FULL
from tests.streams.partitions.partition_world import World, batch, offsets, payloads, poll_one
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.stream_layout import BodyOrder
from topics.stream_errors import StreamStatus
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partition import PartitionOptions
from topics.testing.fake_disk import Damage

KEY = base64.b64encode(b"k" * 32).decode()
EXPIRY_US = 3000

# The size of user headers, of what encryption adds, and of a frame around a payload that does not compress:
# a poll stops before a message whose stored form has no room in the answer.
STORED_EXTRA_BYTES_MAX = 18 + 2 * 28 + 40

new_messages = st.lists(st.tuples(st.sampled_from((0, 0, 1, 2, 3)), st.integers(0, 80)), min_size=1, max_size=5)
counts = st.sampled_from((0, 1, 2, 5, 1000))


class PartitionAgainstList(RuleBasedStateMachine):
    @initialize(
        segment_size=st.sampled_from((1, 400, 2000, 1 << 30)),
        required=st.sampled_from((1, 4, 1000)),
        enforce_fsync=st.booleans(),
        cache_indexes=st.sampled_from(("all", "open_segment", "none")),
        max_poll_bytes=st.sampled_from((1, 500, 1 << 26)),
        order=st.sampled_from(BodyOrder),
        is_encrypted=st.booleans(),
        is_deduplicated=st.booleans(),
    )
    def begin(
        self,
        segment_size: int,
        required: int,
        enforce_fsync: bool,
        cache_indexes: Any,
        max_poll_bytes: int,
        order: BodyOrder,
        is_encrypted: bool,
        is_deduplicated: bool,
    ) -> None:
        self.world = World(
            PartitionOptions(
                segment_size=segment_size,
                messages_required_to_save=required,
                enforce_fsync=enforce_fsync,
                cache_indexes=cache_indexes,
                max_poll_bytes=max_poll_bytes,
            ),
            order=order,
            cipher=Cipher(KEY) if is_encrypted else None,
            deduplicate=(0, EXPIRY_US) if is_deduplicated else None,
        )
        self.sent = 0
        self.last_us = 0
        self.forget()
        self.world.open()

    def forget(self) -> None:
        # By offset: payload and time.
        self.messages: dict[int, tuple[bytes, int]] = {}
        # By offset: the id, of messages that were sent with one.
        self.ids: dict[int, int] = {}
        self.next_offset = 0
        # All messages below this offset are durable.
        self.durable_end = 0
        self.seen: dict[int, int] = {}

    @property
    def now_us(self) -> int:
        return self.world.clock.now_ms() * 1000

    # Changes.

    @rule(new=new_messages, has_headers=st.booleans())
    def append(self, new: list[tuple[int, int]], has_headers: bool) -> None:
        headers = {"key": "value"} if has_headers else None
        now_us = self.now_us
        self.last_us = max(self.last_us, now_us)
        sent = []
        kept = []
        for number, size in new:
            payload = b"%d:" % self.sent + b"x" * size
            self.sent += 1
            sent.append(NewMessage(payload, number, headers))
            if self.world.deduplicate and number:
                if number in self.seen and self.seen[number] + EXPIRY_US > now_us:
                    continue
                self.seen[number] = now_us
            kept.append((payload, number))
        appended = self.world.partition.append(encode_send(sent))
        assert (appended.first_offset, appended.count) == (self.next_offset, len(kept))
        for payload, number in kept:
            self.messages[self.next_offset] = (payload, self.last_us)
            self.ids[self.next_offset] = number
            self.next_offset += 1
        if kept and self.world.options.enforce_fsync and not self.world.partition.unsaved_messages_count:
            self.durable_end = self.next_offset

    @rule(fsync=st.booleans())
    def flush(self, fsync: bool) -> None:
        self.world.partition.flush(fsync=fsync)
        assert self.world.partition.unsaved_messages_count == 0
        if fsync:
            self.durable_end = self.next_offset

    @rule(fsync=st.booleans())
    def save(self, fsync: bool) -> None:
        self.world.partition.save(fsync=fsync)
        if fsync:
            self.durable_end = self.next_offset

    @rule(ms=st.sampled_from((1, 2, 10)), is_back=st.booleans())
    def pass_time(self, ms: int, is_back: bool) -> None:
        if is_back:
            # Otherwise the partition would remember ids for longer than the model.
            if not self.world.deduplicate:
                self.world.clock.set(self.world.clock.now_ms() - ms)
        else:
            self.world.clock.advance(ms)

    @rule(codec=st.sampled_from((Codec.NONE, Codec.GZIP, Codec.ZSTD)))
    def set_codec(self, codec: Codec) -> None:
        self.world.codec = codec
        self.world.partition.set_codec(codec)

    @precondition(lambda self: any(info.is_sealed for info in self.world.partition.segments))
    @rule(place=st.integers(0, 3))
    def delete_segment(self, place: int) -> None:
        sealed = [info for info in self.world.partition.segments if info.is_sealed]
        deleted = self.world.partition.delete_segment(sealed[min(place, len(sealed) - 1)].start_offset)
        # By the count: a power loss may have left the segment empty, and then its end offset is its start offset.
        for offset in range(deleted.start_offset, deleted.start_offset + deleted.messages_count):
            del self.messages[offset]

    @rule()
    def purge(self) -> None:
        self.world.partition.purge()
        self.forget()

    # Ends and starts.

    def started_again(self) -> None:
        """The recovered messages are durable. Ids and times of lost and deleted messages are forgotten."""
        self.seen = {self.ids[offset]: time for offset, (_, time) in sorted(self.messages.items())}
        self.durable_end = self.next_offset
        self.last_us = max((time for _, time in self.messages.values()), default=0)

    @rule()
    def reopen(self) -> None:
        self.world.reopen()
        self.started_again()

    @rule()
    def kill(self) -> None:
        """Takes unflushed messages only. The start makes the rest durable."""
        lost = self.world.partition.unsaved_messages_count
        self.world.restart()
        for offset in range(self.next_offset - lost, self.next_offset):
            del self.messages[offset]
        self.next_offset -= lost
        self.started_again()

    @rule(damage=st.sampled_from(Damage), seed=st.integers(0, 1000))
    def lose_power(self, damage: Damage, seed: int) -> None:
        """Keeps durable messages. The others may be lost from the end, damaged, or there."""
        self.world.disk.crash(damage, seed)
        self.world.forget_monitor()
        self.world.open()
        partition = self.world.partition
        is_whole = True
        found: dict[int, tuple[bytes, int]] = {}
        for info in partition.segments:
            for offset in range(info.start_offset, info.start_offset + info.messages_count):
                polled = poll_one(partition, offset)
                if isinstance(polled, StreamStatus):
                    assert polled is StreamStatus.INVALID_MESSAGE_CHECKSUM
                    assert offset >= self.durable_end
                    is_whole = False
                else:
                    assert polled == (offset, *self.messages[offset])
                    found[offset] = self.messages[offset]
        lost = self.messages.keys() - found.keys()
        assert all(offset >= self.durable_end for offset in lost)
        self.messages = found
        self.next_offset = partition.current_offset + 1 if partition.has_messages else 0
        self.started_again()
        if not is_whole:
            # A poll of all messages fails at the damaged one, as it should. The model begins again without its times.
            self.purge()
            self.reopen()

    # Invariants.

    @invariant()
    def numbers_are_those_of_the_list(self) -> None:
        partition = self.world.partition
        assert partition.has_messages == (self.next_offset > 0)
        assert partition.current_offset == max(self.next_offset - 1, 0)
        assert partition.messages_count == len(self.messages)
        infos = partition.segments
        assert sum(info.messages_count for info in infos) == len(self.messages)
        assert sum(info.size_bytes for info in infos) == partition.size_bytes
        assert [info.is_sealed for info in infos] == [True] * (len(infos) - 1) + [False]
        for info in infos:
            held = [offset for offset in self.messages if info.start_offset <= offset <= info.end_offset]
            assert len(held) == info.messages_count
            if held:
                assert (min(held), max(held)) == (info.start_offset, info.end_offset)
                assert info.start_timestamp == self.messages[min(held)][1]
                assert info.end_timestamp == self.messages[max(held)][1]

    @invariant()
    def everything_can_be_read_from_the_first_message_on(self) -> None:
        found: dict[int, tuple[bytes, int]] = {}
        polled = self.world.partition.reader.poll_first(1000)
        while len(polled):
            for message in polled:
                assert message.offset not in found
                found[message.offset] = (bytes(message.payload), message.timestamp)
            polled = self.world.partition.reader.poll_offset(max(found) + 1, 1000)
        assert found == self.messages

    def expect(self, polled: Any, wanted: list[int]) -> None:
        """The answer has the first of the expected messages, and all of them unless it is full."""
        found = offsets(polled)
        assert found == wanted[: len(found)]
        assert payloads(polled) == [self.messages[offset][0] for offset in found]
        if len(found) < len(wanted):
            assert found, "one message at least, however large"
            next_size = 64 + len(self.messages[wanted[len(found)]][0]) + STORED_EXTRA_BYTES_MAX
            assert polled.size_bytes + next_size > self.world.options.max_poll_bytes
        assert polled.current_offset == max(self.next_offset - 1, 0)

    @rule(offset=st.integers(0, 60), count=counts)
    def poll_offset(self, offset: int, count: int) -> None:
        wanted = [at for at in sorted(self.messages) if at >= offset][:count]
        self.expect(self.world.partition.reader.poll_offset(offset, count), wanted)

    @rule(count=counts)
    def poll_last(self, count: int) -> None:
        wanted = [at for at in sorted(self.messages) if at >= self.next_offset - count][:count]
        self.expect(self.world.partition.reader.poll_last(count), wanted)

    @rule(back_ms=st.integers(-3, 30), rest_us=st.sampled_from((-1, 0, 1)), count=counts)
    def poll_timestamp(self, back_ms: int, rest_us: int, count: int) -> None:
        timestamp = self.now_us - back_ms * 1000 + rest_us
        wanted = [at for at in sorted(self.messages) if self.messages[at][1] >= timestamp][:count]
        self.expect(self.world.partition.reader.poll_timestamp(timestamp, count), wanted)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            assert self.world.monitor.violations == []


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


TestPartitionAgainstList = pytest.mark.usefixtures("_quiet")(PartitionAgainstList.TestCase)
TestPartitionAgainstList.settings = settings(max_examples=1000 if FULL else 20, stateful_step_count=40)


def test_the_machine_can_tell_a_wrong_message() -> None:
    """The model finds a fault that the partition does not report."""
    machine = PartitionAgainstList()
    machine.begin(400, 1, False, "all", 1 << 26, BodyOrder.PAYLOAD_FIRST, False, False)
    machine.append([(0, 3)], False)
    machine.everything_can_be_read_from_the_first_message_on()
    machine.world.partition.append(batch(b"unknown to the list"))
    with pytest.raises(AssertionError):
        machine.everything_can_be_read_from_the_first_message_on()
