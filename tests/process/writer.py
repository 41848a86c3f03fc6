"""A child process that writes until it is killed: `python -m tests.process.writer DIRECTORY RUN`.

It prints lines. Each line is one write to a pipe:

    opening                           before the directory is touched
    record TOPIC SEQ RUN THREAD N     for everything that was found
    lost TOPIC FIRST LAST REASON      for every tombstone met on the way
    ready HEAD_OF_FSYNC HEAD_OF_DISK  the writers begin
    ack TOPIC SEQ RUN THREAD N        a record whose append has returned
    refused THREAD CODE               an append that raised
    closed                            after a clean stop, which SIGTERM asks for

With RUN -1 it stops right after `ready`, by SIGKILL of itself.
"""

import itertools
import os
import signal
import sys
import threading
from typing import Final

import topics
from topics import EngineSettings, Log, TopicsError

CLASSES: Final = {"synced": "fsync", "cached": "disk"}
THREADS: Final = 6
# So small that a few hundred records rotate, checkpoint in the worker process and seal.
SETTINGS: Final = EngineSettings(
    wal_shards=2,
    wal_file_bytes=32 * 1024,
    segment_events_max=100,
    checkpoint_wal_bytes=24 * 1024,
    checkpoint_interval_ms=200,
    tail_cache_bytes=4096,
)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def tell_all(log: Log, topic: str) -> None:
    """Every record and every tombstone, from the start."""
    from_seq = 0
    lines: list[str] = []
    while True:
        page = log.read(topic, from_seq, limit=1000)
        if page.tombstone is not None:
            stone = page.tombstone
            lines.append(f"lost {topic} {stone.gap_from} {stone.gap_to} {stone.reason}\n")
        lines += [f"record {topic} {record.seq} {payload_of(record.data)}\n" for record in page.records]
        if page.caught_up:
            break
        from_seq = page.next_from_seq
    data = memoryview("".join(lines).encode())
    while data:
        data = data[os.write(1, data) :]


def payload_of(data: bytes) -> str:
    """`RUN THREAD N` of a payload such as `"3 1 17 xxx"`. Any other payload is returned as it is."""
    words = data.decode().strip('"').split()
    return " ".join(words[:3]) if len(words) == 4 else f"? ? {data!r}"


def write(log: Log, run: int, thread: int) -> None:
    # Writes alternate between both classes, so the rate of both is that of the class that waits for the disk.
    numbers = dict.fromkeys(CLASSES, 0)
    for topic in itertools.cycle(CLASSES):
        number = numbers[topic]
        count = 1 + number % 3
        payloads = [f"{run} {thread} {number + place} {'x' * (1 + number * 7 % 90)}" for place in range(count)]
        try:
            appended = log.append(topic, payloads)
        except TopicsError as error:
            say("refused", thread, error.code)
            return
        for place in range(count):
            say("ack", topic, appended.first_seq + place, run, thread, number + place)
        numbers[topic] += count


def main() -> None:
    directory, run = sys.argv[1], int(sys.argv[2])
    # All threads inherit the mask, so the signal waits for `sigwait`. A handler that sets an event could find the main
    # thread inside the event's own lock.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    say("opening")
    log = topics.open(directory, settings=SETTINGS)
    for topic, durability in CLASSES.items():
        if topic not in log.topics():
            log.create(topic, durability=durability)
        tell_all(log, topic)
    say("ready", *(log.state(topic).head_seq for topic in CLASSES))
    if run < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    writers = [threading.Thread(target=write, args=(log, run, thread)) for thread in range(THREADS)]
    for writer in writers:
        writer.start()
    signal.sigwait([signal.SIGTERM])
    log.close()
    for writer in writers:
        writer.join()
    say("closed")


if __name__ == "__main__":
    main()
