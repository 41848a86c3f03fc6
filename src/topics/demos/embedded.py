"""`make demo-embedded`: the embedded log in half a minute, in a temporary folder."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Final

import topics

_WRITER: Final = """
import sys, topics
log = topics.open(sys.argv[1])
log.create("payments", durability="fsync")
seq = 0
while True:
    seq = log.append("payments", [{"amount": seq * 10}]).last_seq
    print(seq, flush=True)
"""


def main() -> None:
    root = tempfile.mkdtemp(prefix="topics-demo-")
    try:
        _walk_through(f"{root}/data")
        _work(f"{root}/work")
        _kill_and_count(f"{root}/killed")
    finally:
        shutil.rmtree(root)


def _walk_through(path: str) -> None:
    _say(f"open a log in {path}")
    with topics.open(path) as log:
        log.create("orders", cap_records=5)
        for number in range(1, 9):
            log.append("orders", [topics.NewRecord({"order": number}, tag=f"customer-{number % 2}")])
        _say("eight orders into a topic that keeps five; a reader from the start is told what is gone:")
        page = log.read("orders")
        print("  ", page.tombstone)
        for record in page.records:
            print("  ", record.seq, record.tag, record.data.decode())
        deleted = log.delete("orders", tag="customer-1").deleted
        _say(f"customer-1 asked to be forgotten: {deleted} records deleted for good")
        again = [log.append("orders", ["retry me"], key="k-1").deduped for _ in range(2)]
        _say(f"the same write sent twice with one key: appended, then recognised: deduped={again}")
    with topics.open(path) as log:
        left = [item.seq for item in log.read_all("orders") if isinstance(item, topics.Record)]
        _say(f"closed and opened again: seqs {left}")


def _work(path: str) -> None:
    _say("a queue with three jobs; the second one fails once:")
    with topics.open(path) as log:
        log.create("jobs", type="queue")
        log.append("jobs", [{"resize": number} for number in (1, 2, 3)])
        while jobs := log.claim("jobs", "worker-1", max_jobs=2, wait_ms=10):
            for job in jobs:
                is_done = job.seq != 2 or job.deliveries > 1
                print("  ", "ack " if is_done else "nack", job.seq, job.data.decode(), f"delivery {job.deliveries}")
                (log.ack if is_done else log.nack)("jobs", "worker-1", [job])
        _say(f"no job is left: {log.state('jobs').queue}")


def _kill_and_count(path: str) -> None:
    _say("a child process writes payments (class fsync) and is killed with SIGKILL after 500 answers:")
    answered = 0
    with subprocess.Popen([sys.executable, "-P", "-c", _WRITER, path], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            answered = int(line)
            if answered == 500:
                os.kill(child.pid, signal.SIGKILL)
    with topics.open(path) as log:
        found = [record.seq for record in log.read_all("payments", loss="raise")]
    assert found[:answered] == list(range(1, answered + 1))
    _say(f"{answered} answered, {len(found)} found, none missing: what was answered is there")


def _say(text: str) -> None:
    print(f"\n* {text}", flush=True)


if __name__ == "__main__":
    main()
