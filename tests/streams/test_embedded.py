"""`topics.streams.open`: the engine in this process, on a real disk."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import topics.streams
from tests.conftest import REPOSITORY
from tests.streams.system_world import refusal
from topics.errors import InvalidRequest, StartRefused
from topics.limits import U64_MAX
from topics.streams import NewMessage, PollingStrategy, embedded
from topics.streams.running import upkeep_thread
from topics.streams.running.consuming import StoredOffset
from topics.streams.settings import from_mapping
from topics.streams.system import Sent, System
from topics.testing.fake_disk import FakeDisk


def payloads(polled: topics.streams.PolledMessages) -> list[bytes]:
    return [bytes(message.payload) for message in polled]


def test_the_example_of_its_documentation_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = embedded.__doc__ or ""
    example = "".join(line[4:] + "\n" for line in text.splitlines() if line.startswith("    "))
    assert 'topics.streams.open("data")' in example
    exec(example.replace('"data"', repr(str(tmp_path / "data"))), {"topics": topics})
    assert capsys.readouterr().out == "0 b'first'\n1 b'second'\n"
    with topics.streams.open(tmp_path / "data") as streams:
        assert streams.topic("orders", "events").messages_count == 2


def test_the_program_of_the_page_runs_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs" / "streams.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for run in range(2):
        exec(compile(program, "docs/streams.md", "exec"), {})
        shown = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()]
        assert shown == [f"{2 * run} b'first'", f"{2 * run + 1} b'second'"]


def test_messages_are_sent_polled_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with topics.streams.open(path) as streams:
        assert streams.create_stream("s").id == 0
        topic = streams.create_topic("s", "t", partitions=2, compression="gzip", message_expiry_us=9, max_bytes=U64_MAX)
        assert (topic.message_expiry, topic.max_size, topic.compression) == (9, U64_MAX, 2)
        assert streams.send("s", "t", [b"a", bytearray(b"b"), memoryview(b"c")]) == Sent(0, 0, 3)
        assert streams.send("s", "t", [NewMessage(b"d", 5)], partition=1) == Sent(1, 0, 1)
        assert streams.send("s", "t", [b"e"], key=b"key") == Sent(0, 3, 1)
        streams.flush("s", "t", 1)
    with topics.streams.open(path) as streams:
        assert payloads(streams.poll("s", "t", partition=1, consumer="c")) == [b"d"]
        assert payloads(streams.poll("s", "t", strategy=PollingStrategy.offset(1), count=2)) == [b"b", b"c"]
        streams.store_offset("s", "t", 1, consumer="c")
        assert streams.stored_offset("s", "t", consumer="c") == StoredOffset(0, 3, 1)
        assert payloads(streams.poll("s", "t", consumer="c", auto_commit=True)) == [b"c", b"e"]
        assert streams.stored_offset("s", "t", consumer="c") == StoredOffset(0, 3, 3)
        streams.purge_topic("s", "t")
        assert streams.topic("s", "t").messages_count == 0
        assert [stream.name for stream in streams.streams()] == ["s"]
        streams.delete_topic("s", "t")
        streams.delete_stream("s")
        assert streams.streams() == []


def test_a_group_shares_partitions_among_its_members(tmp_path: Path) -> None:
    with topics.streams.open(tmp_path) as streams:
        streams.create_stream("s")
        streams.create_topic("s", "t", partitions=2)
        for partition in range(2):
            streams.send("s", "t", [b"%d" % partition], partition=partition)
        streams.create_group("s", "t", "g")
        streams.join("s", "t", "g", member=1)
        streams.join("s", "t", "g", member=2)
        assert payloads(streams.poll("s", "t", group="g", member=1)) == [b"0"]
        assert payloads(streams.poll("s", "t", group="g", member=2, auto_commit=True)) == [b"1"]
        streams.store_offset("s", "t", 0, group="g", member=1)
        assert streams.stored_offset("s", "t", group="g") == StoredOffset(0, 0, 0)
        streams.leave("s", "t", "g", member=1)
        assert refusal(lambda: streams.poll("s", "t", group="g", member=1)) == 5006


def test_a_partition_and_a_key_exclude_each_other(tmp_path: Path) -> None:
    with topics.streams.open(tmp_path) as streams:
        streams.create_stream("s")
        streams.create_topic("s", "t")
        with pytest.raises(InvalidRequest, match="a partition or a key, not both"):
            streams.send("s", "t", [b"a"], partition=0, key=b"k")
        assert refusal(lambda: streams.send("s", "t", [b"a"], key=b"")) == 3
        assert refusal(lambda: streams.send("s", "t", [])) == 4009
        assert refusal(lambda: streams.create_topic("s", "u", compression="rar")) == 3


def test_closing_twice_is_closing_once_and_nothing_goes_on_afterwards(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    streams = topics.streams.open(tmp_path)
    streams.create_stream("s")
    streams.close()
    streams.close()
    assert refusal(lambda: streams.create_stream("t")) == 8
    # Threads of other tests may come and go.
    assert {thread for thread in threading.enumerate() if thread.name.startswith("topics-")} <= before


def test_a_thread_of_its_own_does_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    ticked = threading.Semaphore(0)
    failures = iter([OSError("a disk that is tired")])

    def tick(system: System) -> None:
        ticked.release()
        for failure in failures:
            raise failure

    monkeypatch.setattr(System, "tick", tick)
    monkeypatch.setattr(upkeep_thread, "TICK_S", 0.001)
    with topics.streams.open("/data", from_mapping({}), fs=FakeDisk()):
        for _ in range(3):
            assert ticked.acquire(timeout=60), "a failure does not end it"


def test_another_process_is_refused(tmp_path: Path) -> None:
    script = f"import topics.streams; topics.streams.open({str(tmp_path)!r}).close()"
    with topics.streams.open(tmp_path):
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
        assert run.returncode == 1
        assert "is in use by another process" in run.stderr
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


def test_a_path_that_is_no_directory_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartRefused, match="cannot be opened"):
        topics.streams.open(tmp_path / "file")
