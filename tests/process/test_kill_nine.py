"""Real processes on a real disk are killed under load. No acked record is lost or changed, and no seq is used twice."""

import signal
from pathlib import Path

import pytest

from tests.conftest import FULL
from tests.process.kill_run import Findings, lines_of, newest_snapshot, run_kills, run_once, start_writer
from tests.process.writer import CLASSES, SETTINGS, THREADS
from topics.clock import SystemClock
from topics.errors import DirectoryLocked
from topics.storage.directory import open_directory
from topics.storage.fs import RealFs

KILLS = 50 if FULL else 6


@pytest.mark.timeout(900 if FULL else 300)
def test_kill_nine_loses_nothing_that_was_acked(tmp_path: Path) -> None:
    """Classes fsync and disk, with rotations, checkpoints and sealing under load."""
    directory = tmp_path / "data"
    findings = run_kills(directory, KILLS, seed=20_261_115)
    assert findings.faults == [], findings.summary()
    assert findings.kills == KILLS
    assert all(len(findings.acked[topic]) > 100 for topic in CLASSES), findings.summary()
    # With the small settings there were checkpoints, rotations and sealed segments.
    assert newest_snapshot(directory) > 1
    assert all(min(log_files(directory / "wal" / f"shard-{shard:02d}")) > 1 for shard in range(SETTINGS.wal_shards))
    assert len(list(directory.glob("topics/*/seg-*.data"))) > 4


def log_files(directory: Path) -> list[int]:
    return [int(path.stem.removeprefix("wal-")) for path in directory.glob("wal-*.log")]


def test_a_stopped_process_keeps_its_directory_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """The process gets SIGSTOP, and later SIGCONT."""
    directory = tmp_path / "data"
    findings = Findings()
    process = start_writer(directory, 0)
    try:
        acks = 0
        for kind, *words in lines_of(process):
            if kind == "ack":
                topic, seq, *payload = words
                findings.note_ack(topic, int(seq), " ".join(payload))
                acks += 1
                if acks in (100, 200, 300):
                    process.send_signal(signal.SIGSTOP)
                    with pytest.raises(DirectoryLocked, match=f"process {process.pid} "):
                        open_directory(RealFs(), str(directory), SystemClock())
                    process.send_signal(signal.SIGCONT)
                if acks == 600:
                    process.send_signal(signal.SIGKILL)
            assert kind != "refused"
    finally:
        process.kill()
        process.communicate()
    assert len(findings.acked["synced"]) + len(findings.acked["cached"]) >= 600
    run_once(directory, -1, findings, acks=10**9)
    assert findings.faults == [], findings.summary()


@pytest.mark.parametrize("after_acks", [1, 57, 400])
def test_a_stop_during_durable_writes_answers_every_one_of_them(tmp_path: Path, after_acks: int) -> None:
    """Each write is acked, or refused with a clear error and not there. The stop finishes."""
    directory = tmp_path / "data"
    findings = Findings()
    process = start_writer(directory, 0)
    refusals: list[str] = []
    last = ""
    try:
        acks = 0
        for kind, *words in lines_of(process):
            last = kind
            if kind == "ack":
                topic, seq, *payload = words
                findings.note_ack(topic, int(seq), " ".join(payload))
                acks += 1
                if acks == after_acks:
                    process.send_signal(signal.SIGTERM)
            elif kind == "refused":
                refusals.append(words[1])
    finally:
        process.kill()
        process.communicate()
    assert (last, process.returncode) == ("closed", 0)
    assert refusals == ["shutting_down"] * THREADS
    run_once(directory, -1, findings, acks=10**9)
    assert findings.faults == [], findings.summary()
    assert findings.found == findings.acked, "what was refused is not there"


def test_the_comparison_finds_what_it_is_made_to_find() -> None:
    """A test of the check itself: it finds each kind of fault."""
    findings = Findings()
    findings.note_ack("synced", 1, "0 0 0")
    findings.note_ack("synced", 2, "0 0 1")
    findings.note_ack("synced", 2, "0 0 2")
    findings.note_ack("cached", 1, "0 1 0")
    assert len(findings.reused) == 1
    findings.found = {"synced": {1: "0 0 9", 4: "0 0 9"}, "cached": {1: "0 1 0"}}
    findings.check([4, 1])
    assert len(findings.lost) == 1
    assert len(findings.holes) == 1
    assert len(findings.wrong) == 3
    assert "reused             1" in findings.summary()
