"""Processes that fork, or end without closing the log: nothing that was answered is lost, and no process hangs."""

from pathlib import Path

import pytest

import topics
from tests.embedded.python_process import run_code


def output_of(code: str, path: Path) -> str:
    done = run_code(code, path)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


FORK = """
import os, sys, topics
from topics.errors import Closed
log = topics.open(sys.argv[1])
log.create("q", type="queue")
log.append("q", [1, 2])
log.checkpoint()  # The worker process has started.
told, tell = os.pipe()
wait, go_on = os.pipe()
sys.stdout.flush()
if os.fork() == 0:
    os.close(go_on)
    refused = 0
    for call in (log.topics, lambda: log.append("q", [3]), lambda: log.claim("q", "child", wait_ms=None)):
        try:
            call()
        except Closed:
            refused += 1
    log.close()
    os.write(tell, b"%d" % refused)
    os.read(wait, 1)
    sys.exit()
os.close(wait)
print("the child was refused", os.read(told, 1).decode(), "times")
log.append("q", [4])
job, = log.claim("q", "parent")
log.ack("q", "parent", [job])
log.close()
with topics.open(sys.argv[1]) as log:
    print("open again while the child lives:", [record.seq for record in log.read_all("q", loss="raise")])
os.close(go_on)
print("child", os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_forked_child_leaves_the_log_to_its_parent(tmp_path: Path) -> None:
    assert output_of(FORK, tmp_path / "log") == (
        "the child was refused 3 times\nopen again while the child lives: [2, 3]\nchild 0\n"
    )


MULTIPROCESSING = """
import multiprocessing, sys, topics

def work(number):
    return number * 2

with topics.open(sys.argv[1]) as log:
    log.append("t", [1])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        log.append("t", pool.map(work, [1, 2, 3]))
    print(log.state("t").count)
"""


def test_a_pool_of_forked_workers_goes_with_an_open_log(tmp_path: Path) -> None:
    assert output_of(MULTIPROCESSING, tmp_path / "log") == "4\n"


ENDS = {
    "topics.open": """
import sys, topics
log = topics.open(sys.argv[1])
log.create("q", type="queue", durability="{durability}")
log.append("q", [1, 2, 3])
job, = log.claim("q", "w")
log.ack("q", "w", [job])
log.claim("q", "w")
log.claim("q", "v", wait_ms=1)
import threading
threading.Thread(target=lambda: list(log.tail("q")), daemon=True).start()
log.checkpoint()
""",
    "topics.open_async": """
import asyncio, sys, topics
async def main():
    log = await topics.open_async(sys.argv[1])
    await log.create("q", type="queue", durability="{durability}")
    await log.append("q", [1, 2, 3])
    job, = await log.claim("q", "w")
    await log.ack("q", "w", [job])
    await log.claim("q", "w")
    waiting = asyncio.create_task(log.claim("q", "v", max_jobs=5))
    await waiting
    asyncio.create_task(log.claim("q", "v", wait_ms=None))
    await asyncio.sleep(0)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("durability", ["memory", "fsync"])
@pytest.mark.parametrize("opened_by", ENDS)
def test_a_process_that_ends_without_close_loses_nothing(tmp_path: Path, opened_by: str, durability: str) -> None:
    assert output_of(ENDS[opened_by].replace("{durability}", durability), tmp_path / "log") == ""
    with topics.open(tmp_path / "log") as log:
        assert [record.seq for record in log.read_all("q", loss="raise")] == [2, 3]
        assert [job.seq for job in log.claim("q", "w", max_jobs=9)] == [2, 3]
