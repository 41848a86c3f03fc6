"""The partitioned engine on a fake disk, with a model of what must be there after a crash: for sweeps.

The model of the metadata has every state since the last durable one, because a state log loses entries from its end
only. The model of a partition has the messages that were sent, how many of them were accepted, and how many must
survive. The model notes an operation before the engine does it and its outcome when it returns, so that after a crash
in between both are possible. `recover` opens the directory again and compares it with the model; what it finds must
stay from then on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from tests.crash.harness import Blow
from topics.errors import StartRefused
from topics.formats.message import HEADER, HEADER_BYTES, ID_AT
from topics.formats.message_codec import Codec
from topics.storage.fs import Fs
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.consumers.polling import Consumer, PollingStrategy
from topics.streams.metadata.logins import Credentials
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import PartitionId
from topics.streams.settings import StreamsSettings
from topics.streams.system import System
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs

ROOT: Final = "/data"
ROOT_USER: Final = Credentials("root", "secret")
EVERYTHING: Final = 1_000_000

# Sectors this small tear a message in its middle, and a batch between any two messages.
SECTOR_BYTES: Final = 64

# These lose writes in any order: a later write may survive an earlier one.
SCATTERING: Final = frozenset({Damage.SUBSET, Damage.ZERO_FILL, Damage.GARBLE})

# The names of the stream and the topic, and the number of the partition.
Place = tuple[str, str, int]


@dataclass
class TopicModel:
    id: int
    partitions_count: int
    codec: str
    groups: dict[str, int] = field(default_factory=dict)


@dataclass
class StreamModel:
    id: int
    topics: dict[str, TopicModel] = field(default_factory=dict)


Metadata = dict[str, StreamModel]


@dataclass
class PartitionModel:
    """A partition since its creation or its last purge."""

    # All messages that were sent, by offset.
    messages: dict[int, bytes] = field(default_factory=dict)
    # One after the last accepted message, and one after the last message that must survive any crash.
    accepted_end: int = 0
    durable_end: int = 0
    # Retention may have deleted messages below; it has deleted all below the first.
    deleted_end: int = 0
    deletable_end: int = 0
    # Messages that an earlier power loss took out of the middle; they were not synced.
    holes: set[int] = field(default_factory=set)
    # A purge has begun and has not returned.
    is_purging: bool = False
    # The stored offsets of consumers and groups, by name: every value that a crash may leave.
    offsets: dict[str, set[int | None]] = field(default_factory=dict)


class Broken(AssertionError):
    """The engine contradicts the model."""


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Broken(f"{what}: found {found!r}, wanted {wanted!r}")


@dataclass
class StreamsWorld:
    settings: StreamsSettings
    disk: FakeDisk
    clock: ManualClock = field(default_factory=ManualClock)
    # The metadata that a start may find; the last one is the present state.
    states: list[Metadata] = field(default_factory=lambda: [{}])
    partitions: dict[Place, PartitionModel] = field(default_factory=dict)
    # Every payload that was ever sent, by the folder of the partition and the offset: files may survive their topic.
    ever_sent: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)
    number: int = 0
    # Whether a sync has failed since the last power loss: then the page cache has more than the disk.
    sync_failed: bool = False
    # The status numbers of refused requests, in order.
    refusals: list[StreamStatus] = field(default_factory=list)
    # Called with the file system of each new process, to arm faults.
    arm: Callable[[FaultFs], None] | None = None
    faults: FaultFs = field(init=False)
    monitor: MonitorFs = field(init=False)
    opened: System | None = None

    def fork(self) -> StreamsWorld:
        clock = ManualClock(self.clock.now_ms(), self.clock.monotonic_ms())
        return StreamsWorld(
            self.settings,
            self.disk.clone(),
            clock,
            copy.deepcopy(self.states),
            copy.deepcopy(self.partitions),
            copy.deepcopy(self.ever_sent),
            self.number,
            self.sync_failed,
        )

    @property
    def system(self) -> System:
        assert self.opened is not None
        return self.opened

    @property
    def is_durable(self) -> bool:
        """Whether an acknowledged message survives any crash."""
        partition = self.settings.system.partition
        return partition.enforce_fsync and partition.messages_required_to_save == 1

    # Starts and ends.

    def open(self) -> None:
        """A new process: it knows nothing of files that the last process did not sync."""
        self.faults = FaultFs(self.disk)
        self.monitor = MonitorFs(self.faults)
        fs: Fs = self.monitor
        if self.arm is not None:
            # A directory whose sync failed is never synced again, and the monitor would report that.
            self.arm(self.faults)
            fs = self.faults
        self.opened = System.open(fs, ROOT, self.settings, clock=self.clock, root_user=ROOT_USER)

    def close(self) -> None:
        self.system.close()
        self.opened = None
        self.states = self.states[-1:]
        for model in self.partitions.values():
            model.durable_end = model.accepted_end
        expect(self.monitor.check_settled(), [], "directories that wait for a sync after a clean stop")

    def give_up(self, error: StreamsError) -> None:
        """A clean stop failed: the process has ended, and not everything was saved."""
        self._refuse(error)
        self.opened = None

    def crash(self, blow: Blow, seed: int = 0) -> None:
        self.opened = None
        self.disk.on_operation = None
        if blow is None:
            self.disk.kill()
        else:
            self.disk.crash(blow, seed)
            self.sync_failed = False
        self._lose(blow)

    def _lose(self, blow: Blow) -> None:
        """Lowers what must survive to what this kind of crash keeps."""
        if blow is None:
            # The kernel is alive: written messages are there, buffered ones are lost.
            del self.states[:-2]

    # Operations. Each one notes what it may change, and then calls the engine.

    @contextmanager
    def _changing(self, change: Callable[[Metadata], None], *, is_durable: bool) -> Any:
        after = copy.deepcopy(self.states[-1])
        try:
            change(after)
        except KeyError:
            # The request before it, which should have made its stream or topic, was refused.
            raise _Refused from None
        self.states.append(after)
        try:
            yield
        except StreamsError as error:
            self._refuse(error)
            if error.number is not StreamStatus.CANNOT_SYNC_FILE:
                del self.states[-1]
            else:
                # Whether the entry is on disk is unknown; this process goes on as if it is not.
                self.states.append(self.states[-2])
            raise _Refused from error
        if is_durable or self.settings.system.state.enforce_fsync:
            self.states = [after]

    def _refuse(self, error: StreamsError) -> None:
        self.refusals.append(error.number)
        if error.number is StreamStatus.CANNOT_SYNC_FILE:
            self.sync_failed = True

    def create_stream(self, name: str) -> None:
        def change(metadata: Metadata) -> None:
            metadata[name] = StreamModel(_smallest_free(stream.id for stream in metadata.values()))

        with _tolerating(), self._changing(change, is_durable=False):
            found = self.system.create_stream(name)
            expect(found.id, self.states[-1][name].id, "the id of a new stream")

    def delete_stream(self, name: str) -> None:
        def change(metadata: Metadata) -> None:
            del metadata[name]

        with _tolerating(), self._changing(change, is_durable=True):
            self.system.delete_stream(name)
            self._forget(lambda place: place[0] == name)

    def create_topic(self, stream: str, name: str, partitions_count: int, **options: Any) -> None:
        def change(metadata: Metadata) -> None:
            topics = metadata[stream].topics
            topics[name] = TopicModel(_smallest_free(topic.id for topic in topics.values()), partitions_count, "none")

        with _tolerating(), self._changing(change, is_durable=True):
            found = self.system.create_topic(stream, name, partitions_count=partitions_count, **options)
            expect(found.id, self.states[-1][stream].topics[name].id, "the id of a new topic")

    def update_topic(self, stream: str, name: str, codec: Codec) -> None:
        def change(metadata: Metadata) -> None:
            metadata[stream].topics[name].codec = codec.value

        with _tolerating(), self._changing(change, is_durable=False):
            self.system.update_topic(stream, name, name=name, compression=codec)

    def delete_topic(self, stream: str, name: str) -> None:
        def change(metadata: Metadata) -> None:
            del metadata[stream].topics[name]

        with _tolerating(), self._changing(change, is_durable=True):
            self.system.delete_topic(stream, name)
            self._forget(lambda place: place[:2] == (stream, name))

    def create_partitions(self, stream: str, topic: str, count: int) -> None:
        def change(metadata: Metadata) -> None:
            metadata[stream].topics[topic].partitions_count += count

        with _tolerating(), self._changing(change, is_durable=True):
            self.system.create_partitions(stream, topic, count)

    def delete_partitions(self, stream: str, topic: str, count: int) -> None:
        def change(metadata: Metadata) -> None:
            metadata[stream].topics[topic].partitions_count -= count

        with _tolerating(), self._changing(change, is_durable=True):
            self.system.delete_partitions(stream, topic, count)
            left = self.states[-1][stream].topics[topic].partitions_count
            self._forget(lambda place: place[:2] == (stream, topic) and place[2] >= left)

    def create_group(self, stream: str, topic: str, name: str) -> None:
        def change(metadata: Metadata) -> None:
            groups = metadata[stream].topics[topic].groups
            groups[name] = _smallest_free(groups.values())

        with _tolerating(), self._changing(change, is_durable=False):
            self.system.create_group(stream, topic, name)

    def delete_group(self, stream: str, topic: str, name: str) -> None:
        def change(metadata: Metadata) -> None:
            del metadata[stream].topics[topic].groups[name]

        for model in self._models(stream, topic):
            model.offsets.setdefault(name, {None}).add(None)
        with _tolerating(), self._changing(change, is_durable=False):
            self.system.delete_group(stream, topic, name)

    def _forget(self, is_gone: Callable[[Place], bool]) -> None:
        for place in [place for place in self.partitions if is_gone(place)]:
            del self.partitions[place]

    def model(self, stream: str, topic: str, partition: int) -> PartitionModel:
        return self.partitions.setdefault((stream, topic, partition), PartitionModel())

    def _models(self, stream: str, topic: str) -> list[PartitionModel]:
        if not self._exists(stream, topic):
            return []
        count = self.states[-1][stream].topics[topic].partitions_count
        return [self.model(stream, topic, partition) for partition in range(count)]

    def _exists(self, stream: str, topic: str, partition: int = 0) -> bool:
        topics = self.states[-1][stream].topics if stream in self.states[-1] else {}
        return topic in topics and partition < topics[topic].partitions_count

    def send(self, stream: str, topic: str, partition: int, count: int = 1, size: int = 20) -> None:
        if not self._exists(stream, topic, partition):
            return
        payloads = []
        for _ in range(count):
            self.number += 1
            payloads.append((b"%d " % self.number).ljust(size, b"x"))
        model = self.model(stream, topic, partition)
        end = model.accepted_end
        before = dict(model.messages)
        was_stopped = self._is_stopped(stream, topic, partition)
        model.messages |= {end + place: payload for place, payload in enumerate(payloads)}
        self._note_sent(stream, topic, partition, model)
        batch = encode_send([NewMessage(payload) for payload in payloads])
        try:
            sent = self.system.send(stream, topic, batch, PartitionId(partition))
        except StreamsError as error:
            self._refuse(error)
            if was_stopped or not self._is_stopped(stream, topic, partition):
                # Otherwise a sync failed, and what the disk has is unknown.
                model.messages = before
            return
        expect((sent.first_offset, sent.count), (end, count), "where a batch went")
        model.accepted_end += count
        if self.is_durable:
            model.durable_end = model.accepted_end
            self.monitor.require_synced(f"{self._directory(stream, topic, partition)}/0")

    def _directory(self, stream: str, topic: str, partition: int) -> str:
        stream_id = self.states[-1][stream].id
        return f"{ROOT}/streams/{stream_id}/topics/{self.states[-1][stream].topics[topic].id}/partitions/{partition}"

    def _note_sent(self, stream: str, topic: str, partition: int, model: PartitionModel) -> None:
        key = self._directory(stream, topic, partition)
        for offset, payload in model.messages.items():
            self.ever_sent.setdefault((key, offset), set()).add(payload)

    def _is_stopped(self, stream: str, topic: str, partition: int) -> bool:
        info = self.system.metadata.resolve_topic(stream, topic)
        return self.system._topics.find(info.stream_id, info.id).partitions[partition].partition.stopped is not None

    def flush(self, stream: str, topic: str, partition: int) -> None:
        if not self._exists(stream, topic, partition):
            return
        model = self.model(stream, topic, partition)
        try:
            self.system.flush(stream, topic, partition, fsync=True)
        except StreamsError as error:
            self._refuse(error)
            return
        model.durable_end = model.accepted_end
        self.monitor.require_synced(f"{self._directory(stream, topic, partition)}/0")

    def purge(self, stream: str, topic: str) -> None:
        if not self._exists(stream, topic):
            return
        for model in self._models(stream, topic):
            model.is_purging = True
        try:
            self.system.purge_topic(stream, topic)
        except StreamsError as error:
            self._refuse(error)
            self._adopt_unfinished(stream, topic)
            return
        for place in [place for place in self.partitions if place[:2] == (stream, topic)]:
            offsets: dict[str, set[int | None]] = {name: {None} for name in self.partitions[place].offsets}
            self.partitions[place] = PartitionModel(offsets=offsets)

    def _adopt_unfinished(self, stream: str, topic: str) -> None:
        """A purge that failed has purged some partitions; the process continues with the rest."""
        for partition, model in enumerate(self._models(stream, topic)):
            self._settle_partition((stream, topic, partition), model, None, may_rise=False)
            model.is_purging = True

    def delete_segments(self, stream: str, topic: str, partition: int, count: int) -> None:
        if not self._exists(stream, topic, partition):
            return
        self._expect_deletions()
        try:
            self.system.delete_segments(stream, topic, partition, count)
        except StreamsError as error:
            self._refuse(error)
        self._note_deletions()

    def wait(self, ms: int) -> None:
        """Time goes by, and the regular work is done: saving, archiving, deleting."""
        self.clock.advance(ms)
        self._expect_deletions()
        self.system.tick()
        self._note_deletions()

    def _expect_deletions(self) -> None:
        for model in self.partitions.values():
            model.deletable_end = max(model.deletable_end, model.accepted_end)

    def _note_deletions(self) -> None:
        """The engine decides which segments it deletes; once it has returned, they must stay deleted."""
        for (stream, topic, partition), model in self.partitions.items():
            if not self._exists(stream, topic, partition):
                continue
            info = self.system.metadata.resolve_topic(stream, topic)
            running = self.system._topics.find(info.stream_id, info.id).partitions[partition]
            if self.arm is None:
                # Otherwise a deletion may have failed halfway: the segment is gone now and may be back after a crash.
                model.deleted_end = max(model.deleted_end, running.partition.segments[0].start_offset)
                model.deletable_end = model.deleted_end

    def store_offset(self, stream: str, topic: str, partition: int, consumer: str, offset: int) -> None:
        if not self._exists(stream, topic, partition):
            return
        offsets = self.model(stream, topic, partition).offsets.setdefault(consumer, {None})
        offsets.add(offset)
        try:
            self.system.store_offset(stream, topic, Consumer(consumer), offset, partition_id=partition)
        except StreamsError as error:
            self._refuse(error)

    def delete_offset(self, stream: str, topic: str, partition: int, consumer: str) -> None:
        if not self._exists(stream, topic, partition):
            return
        model = self.model(stream, topic, partition)
        model.offsets.setdefault(consumer, set()).add(None)
        try:
            self.system.delete_offset(stream, topic, Consumer(consumer), partition_id=partition)
        except StreamsError as error:
            self._refuse(error)
        else:
            model.offsets[consumer] = {None}

    def consume(self, stream: str, topic: str, group: str, count: int) -> list[bytes]:
        """The group polls all its partitions once and commits the offsets."""
        got = []
        if not self._exists(stream, topic) or group not in self.states[-1][stream].topics[topic].groups:
            return []
        try:
            self.system.join_group(stream, topic, group, 1)
            for model in self._models(stream, topic):
                reachable = range(model.accepted_end)
                model.offsets.setdefault(group, {None}).update(reachable)
                polled = self.system.poll(
                    stream, topic, Consumer.group(group), PollingStrategy.next(), count, auto_commit=True, client_id=1
                )
                got += [bytes(message.payload) for message in polled]
        except StreamsError as error:
            self._refuse(error)
        return got

    # Comparing the engine with the model.

    def recover(self, blow: Blow = None) -> None:
        """Opens the directory and compares it with the model. What it finds must stay from then on."""
        self.open()
        self._settle_metadata()
        self.refusals.clear()
        for place, model in self._known_partitions().items():
            self._settle_partition(place, model, blow, may_rise=not self.sync_failed)
        self.check_archive(blow)
        expect(self.monitor.violations, [], "violations of the rules of files")

    def _settle_metadata(self) -> None:
        found = self.found_metadata()
        if found not in self.states:
            raise Broken(f"the metadata are {found!r}, which is none of {self.states!r}")
        # After a failed sync the disk may have less than the page cache that was just read.
        self.states = [*self.states, found] if self.sync_failed else [found]

    def found_metadata(self) -> Metadata:
        return {
            stream.name: StreamModel(
                stream.id,
                {
                    topic.name: TopicModel(
                        topic.id,
                        len(topic.partitions),
                        Codec.from_code(topic.compression).value,
                        {group.name: group.id for group in topic.groups.values()},
                    )
                    for topic in stream.topics.values()
                },
            )
            for stream in self.system.metadata.streams.values()
        }

    def _known_partitions(self) -> dict[Place, PartitionModel]:
        places = {
            (stream_name, topic_name, partition)
            for stream_name, stream in self.states[-1].items()
            for topic_name, topic in stream.topics.items()
            for partition in range(topic.partitions_count)
        }
        self._forget(lambda place: place not in places)
        return {place: self.model(*place) for place in sorted(places)}

    def _settle_partition(self, place: Place, model: PartitionModel, blow: Blow, *, may_rise: bool) -> None:
        found, end = self.read(place)
        self._check_messages(place, model, found, end, blow)
        self._check_offsets(place, model, blow, end)
        is_new_life = model.is_purging and not found and end == 0
        first = min(found, default=end)
        model.holes = {*range(first, end)} - found.keys()
        model.messages = found
        model.accepted_end = end
        if may_rise or is_new_life:
            model.durable_end = end
        model.durable_end = min(model.durable_end, end)
        model.deleted_end = model.deletable_end = first
        model.is_purging = False

    def _check_messages(
        self, place: Place, model: PartitionModel, found: dict[int, bytes], end: int, blow: Blow
    ) -> None:
        if model.is_purging:
            for offset, payload in found.items():
                if payload not in self.ever_sent[(self._directory(*place), offset)]:
                    raise Broken(f"{place}, offset {offset}: {payload!r} was never sent")
            return
        for offset, payload in found.items():
            expect(payload, model.messages.get(offset), f"{place}, offset {offset}")
        first = min(found, default=end)
        if found and first < model.deleted_end:
            raise Broken(f"{place}: begins at {first}, though all before {model.deleted_end} was deleted")
        durable = set(range(model.deletable_end, model.durable_end)) - model.holes
        lost = sorted(durable - found.keys())
        expect(lost, [], f"{place}: durable messages that are lost")
        if end < max(model.durable_end, model.deleted_end):
            raise Broken(f"{place}: ends at {end}, before {model.durable_end} that was durable")
        if blow not in SCATTERING or self.is_durable:
            if found and first > model.deletable_end:
                raise Broken(f"{place}: begins at {first}, though nothing behind {model.deletable_end} was deleted")
            # Lost offsets are not always used again: there may be a later segment.
            last = max(found, default=end - 1)
            expect(sorted(found), sorted({*range(first, last + 1)} - model.holes), f"{place}: offsets without a gap")

    def _check_offsets(self, place: Place, model: PartitionModel, blow: Blow, end: int) -> None:
        stream, topic, partition = place
        groups = self.states[-1][stream].topics[topic].groups
        for name, values in model.offsets.items():
            is_group = name in groups
            who = Consumer.group(name) if is_group else Consumer(name)
            stored = self.system.get_offset(stream, topic, who, partition_id=partition)
            value = None if stored is None else stored.stored_offset
            # A group that is not in the state log has no offset. An offset above the last message was lowered to it.
            allowed = values | ({max(end - 1, 0)} if any(known is not None for known in values) else set())
            if blow in SCATTERING and values != {None}:
                # The 8 bytes have no checksum. It is enough that they are the offset of a message.
                allowed |= {None, *range(end)}
            if value not in allowed:
                raise Broken(f"{place}: {name} has stored {value}, not one of {allowed}")
            if blow is not None:
                values.clear()
            # After a kill the offset may come from the page cache, and the disk may have an older one.
            values |= {None, value}

    def read(self, place: Place) -> tuple[dict[int, bytes], int]:
        """The messages that can be read, by offset, and the next offset."""
        stream, topic, partition = place
        state = self.system.topic_state(stream, topic).partitions[partition]
        end = state.current_offset + 1 if state.has_messages else 0
        found: dict[int, bytes] = {}
        offset = 0
        while offset < end:
            try:
                polled = self._poll(place, offset, EVERYTHING)
            except StreamsError:
                # A later message is damaged: the messages are read one by one.
                offset = self._read_one(place, offset, found)
                continue
            if not polled:
                break
            assert not polled.keys() & found.keys()
            found |= polled
            offset = max(polled) + 1
        return found, end

    def _read_one(self, place: Place, offset: int, found: dict[int, bytes]) -> int:
        try:
            found |= self._poll(place, offset, 1)
        except StreamsError as error:
            if error.number not in (StreamStatus.INVALID_MESSAGE_CHECKSUM, StreamStatus.INVALID_OFFSET):
                raise
        return max(offset, *found) + 1 if found else offset + 1

    def _poll(self, place: Place, offset: int, count: int) -> dict[int, bytes]:
        stream, topic, partition = place
        polled = self.system.poll(
            stream, topic, Consumer(99), PollingStrategy.offset(offset), count, partition_id=partition
        )
        messages = [(message.offset, bytes(message.payload)) for message in polled]
        expect([offset for offset, _ in messages], sorted({offset for offset, _ in messages}), "offsets of a poll")
        return dict(messages)

    def check_archive(self, blow: Blow) -> None:
        """Every log in the archive is complete and holds messages that were sent."""
        backup = f"{ROOT}/{self.settings.system.backup.path}/"
        for path, data in self.disk.files().items():
            if not path.startswith(backup) or not path.endswith(".log"):
                continue
            key = path.removeprefix(backup).rpartition("/")[0]
            offset = int(path.rpartition("/")[2].removesuffix(".log"))
            at = 0
            while at < len(data):
                checksum, _, found, _, _, headers_bytes, payload_bytes, _ = HEADER.unpack_from(data, at)
                stop = at + HEADER_BYTES + headers_bytes + payload_bytes
                expect(found, offset, f"{path}: the offset at {at}")
                expect(xxh3_64_intdigest(data[at + ID_AT : stop]), checksum, f"{path}: the checksum at {at}")
                payload = data[at + HEADER_BYTES + headers_bytes : stop]
                if payload not in self.ever_sent[(f"{ROOT}/{key}", offset)]:
                    raise Broken(f"{path}: {payload!r} was never sent")
                offset, at = offset + 1, stop

    def check(self) -> None:
        """The running engine shows the messages that it accepted and none that it refused."""
        expect(self.found_metadata(), self.states[-1], "metadata")
        for place, model in self._known_partitions().items():
            found, end = self.read(place)
            self._check_messages(place, model, found, end, None)
            expect(end, model.accepted_end, f"{place}: the next offset")
        expect(self.monitor.violations, [], "violations of the rules of files")

    def check_second_recovery(self) -> None:
        """A second start finds the same."""
        before = {place: self.read(place) for place in self.partitions}
        self.crash(None)
        self.open()
        expect(self.found_metadata(), self.states[-1], "metadata of the second recovery")
        expect({place: self.read(place) for place in self.partitions}, before, "messages of the second recovery")

    def write_more(self) -> None:
        """Every partition takes messages, and new streams and topics can be created."""
        for place in list(self._known_partitions()):
            self.send(*place, count=2, size=90)
            self.flush(*place)
            if last := self.model(*place).accepted_end:
                self.store_offset(*place, "after", last - 1)
        name = f"more-{self.number}"
        self.create_stream(name)
        self.create_topic(name, "t", 1)
        self.send(name, "t", 0)


class _Refused(Exception):
    """Allows the engine to refuse the operation; the refusal was noted."""


@contextmanager
def _tolerating() -> Any:
    try:
        yield
    except _Refused:
        pass


def _smallest_free(taken: Any) -> int:
    ids = set(taken)
    return next(number for number in range(len(ids) + 1) if number not in ids)


def may_refuse(world: StreamsWorld, blow: Blow, error: StartRefused) -> bool:
    """Whether several unsynced entries may be lost out of order: damage before the end of a state log, which no start
    repairs."""
    return blow in SCATTERING and len(world.states) > 2 and "offset" in (error.detail or {})
