"""A backup of a server under load: killed, run again, restored to a point in time, compared with what was answered."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from topics.client.sync.client import Client
from topics.testing.server_process import ServerProcess

WRITERS: Final = 2
BATCH: Final = 10
# A backup may be done before it is killed. Then another one is begun.
TRIES_MAX: Final = 10
ENTRY: Final = (sys.executable, "-m", "topics.cli.entry")

Row = tuple[int, int, str | None, str]
"""Seq, time, tag, data."""


class Load:
    """Writers of two topics, a worker that acks jobs, and deletes by tag: until the block ends."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = threading.Event()
        self._changed = threading.Condition()
        # (topic, first seq, last seq, number) of each answered write, and (topic, tag) of each answered delete.
        self.acked: list[tuple[str, int, int, int]] = []
        self.deleted: list[tuple[str, str]] = []
        self.done_jobs: set[int] = set()
        self.errors: list[BaseException] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        with Client(self._url) as client:
            client.create("log", durability="fsync")
            client.create("cached", durability="disk")
            client.create("jobs", type="queue")
        calls = [*([self._write] * WRITERS), self._work]
        threads = [threading.Thread(target=self._guarded, args=(call, n)) for n, call in enumerate(calls)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()
        assert self.errors == []

    def wait_writes(self, count: int) -> None:
        """Waits for this many more answers."""
        with self._changed:
            wanted = len(self.acked) + count
            assert self._changed.wait_for(lambda: len(self.acked) >= wanted or self.errors, 60)

    def _guarded(self, call: Any, number: int) -> None:
        try:
            with Client(self._url) as client:
                call(client, number)
        except BaseException as error:
            with self._changed:
                self.errors.append(error)
                self._changed.notify_all()
            raise

    def _write(self, client: Client, writer: int) -> None:
        turn = 0
        while not self._is_over.is_set():
            turn += 1
            for topic in ("log", "cached", "jobs"):
                tag = f"w{writer}-{turn}"
                records = [{"data": f"{writer}-{turn}-{n}", "tag": tag} for n in range(BATCH if topic != "jobs" else 3)]
                answer = client.append_encoded(topic, json.dumps(records).encode(), key=f"{topic}-{tag}")
                with self._changed:
                    self.acked.append((topic, answer.first_seq, answer.last_seq, len(self.acked)))
                    self._changed.notify_all()
            if turn % 5 == 0:
                client.delete("log", tag=tag)
                self.deleted.append(("log", tag))

    def _work(self, client: Client, _: int) -> None:
        while not self._is_over.is_set():
            claimed = client.claim("jobs", "w", max_jobs=10, lease_ms=600_000, wait_ms=20)
            # Every third job is kept: it has a lease when the backup is taken.
            seqs = [job.seq for job in claimed if job.seq % 3]
            if seqs:
                client.ack("jobs", "w", seqs)
                self.done_jobs.update(seqs)


def content_of(client: Client, topic: str) -> list[Row]:
    found: list[Row] = []
    cursor = 0
    while True:
        page = client.read(topic, cursor)
        assert page.tombstone is None
        for record in page.records:
            tag = record.tag if isinstance(record.tag, str) else None
            found.append((record.seq, record.ts, tag, bytes(record.data).decode()))
        cursor = page.next_from_seq
        if page.caught_up:
            return found


def topics(*arguments: object) -> dict[str, Any]:
    """The answer of a command that prints JSON."""
    done = subprocess.run(
        [*ENTRY, *map(str, arguments), "--json"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def killed_backup(place: Path, url: str) -> bool:
    """Kills a backup when it has written some files. Whether it was killed in the middle."""
    files = place / "files"
    before = len(list(files.rglob("*.data")))
    process = subprocess.Popen([*ENTRY, "backup", str(place), "--server", url], stdout=subprocess.PIPE)
    while process.poll() is None and len(list(files.rglob("*.data"))) < before + 2:
        # Looks again at once: the process is busy, too.
        pass
    process.kill()
    process.communicate()
    return process.returncode < 0


def restored(tmp_path: Path, place: Path, name: str, *options: object) -> dict[str, list[Row]]:
    """What a server on the restored directory serves."""
    directory = tmp_path / name
    topics("restore", place, "--data-dir", directory, *options)
    checked = subprocess.run([*ENTRY, "verify", str(directory)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert "no damage, 0 warnings" in checked.stdout
    with ServerProcess(directory) as server, Client(server.url) as client:
        found = {topic: content_of(client, topic) for topic in ("log", "cached", "jobs")}
        # All jobs are ready: leases are not restored.
        assert client.state("jobs").queue.ready == len(found["jobs"])  # type: ignore[union-attr]
        return found


def test_a_backup_under_load_has_what_was_answered(tmp_path: Path) -> None:
    place = tmp_path / "backup"
    with ServerProcess(segment_max_events=100, segment_max_age_ms=500) as server:
        load = Load(server.url)
        with load.running(), Client(server.url) as client:
            for _ in range(TRIES_MAX):
                load.wait_writes(30)
                for topic in ("log", "cached"):
                    client.seal(topic)
                if was_killed := killed_backup(place, server.url):
                    break
            assert was_killed
            done_first = set(load.done_jobs)
            first = topics("backup", place, "--server", server.url)
            load.wait_writes(30)
            client.seal("log")
            killed_backup(place, server.url)
            acked_second, deleted_second = len(load.acked), set(load.deleted)
            second = topics("backup", place, "--server", server.url, "--http-only")
            load.wait_writes(10)
        with Client(server.url) as client:
            finally_there = {topic: content_of(client, topic) for topic in ("log", "cached", "jobs")}
    assert topics("backup", "verify", place)["damage"] == 0
    assert second["new_bytes"] < second["size_bytes"]

    whole = restored(tmp_path, place, "whole")
    # A time in the middle, which is no point.
    until_ms = (first["ts"] + second["ts"]) // 2
    cut = restored(tmp_path, place, "cut", "--until", until_ms)

    for topic in ("log", "cached"):
        gone = {tag for name, tag in load.deleted if name == topic}
        gone_before = {tag for name, tag in deleted_second if name == topic}
        rows = {row[0]: row for row in finally_there[topic]}
        seqs = {row[0] for row in whole[topic]}
        last_seq_of_backup = max(seqs)
        # Every answered record is there with the same time, tag and data, but for records that were deleted.
        for name, first_seq, last_seq, number in load.acked:
            if name == topic and number < acked_second:
                missing = [seq for seq in range(first_seq, last_seq + 1) if seq not in seqs]
                assert not any(seq in rows for seq in missing)
        # Deletes that the backup knows stay deleted, and nothing is invented.
        assert not {row[2] for row in whole[topic]} & gone_before
        assert all(row[0] in rows or row[2] in gone for row in whole[topic])
        assert [row for row in whole[topic] if row[0] in rows] == [
            row for row in finally_there[topic] if row[0] <= last_seq_of_backup
        ]
        assert [row for row in cut[topic] if row[0] in rows] == [
            row for row in finally_there[topic] if row[1] <= until_ms
        ]
    # No job that was done before the backup is done again, and none that was not done is lost.
    jobs = {row[0] for row in whole["jobs"]}
    assert not jobs & done_first
    last_job = max(jobs)
    assert jobs >= {row[0] for row in finally_there["jobs"] if row[0] <= last_job}
