"""A worker in a process of its own, to be killed: it notes each job in a file before and after the work.

Arguments: the kind of log, its address or directory, the queue, the file, and after how many jobs it stands still (0:
never), so that a test kills it in the middle.
"""

import asyncio
import os
import sys
import threading

import topics

KIND, WHERE, QUEUE, NOTES = sys.argv[1:5]
JOBS_MAX = int(sys.argv[5])
notes = os.open(NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


noted: list[int] = []


def note(job: topics.Job) -> bool:
    """Returns whether the process shall stand still now."""
    # One write each: it is in the file, whatever happens to the process next.
    os.write(notes, b"%d %d\n" % (job.seq, job.deliveries))
    noted.append(job.seq)
    return len(noted) >= JOBS_MAX > 0


async def work_async(log: topics.AsyncClient | topics.AsyncLog) -> None:
    async with log:

        @topics.async_worker(log, QUEUE, concurrency=2)
        async def handle(job: topics.Job) -> None:
            if note(job):
                await asyncio.Event().wait()

        await handle.run()


def work(log: topics.Client | topics.Log) -> None:
    with log:

        @topics.worker(log, QUEUE, concurrency=2)
        def handle(job: topics.Job) -> None:
            if note(job):
                threading.Event().wait()

        handle.run()


async def open_embedded() -> None:
    await work_async(await topics.open_async(WHERE))


if KIND == "client":
    work(topics.Client(WHERE))
elif KIND == "async client":
    asyncio.run(work_async(topics.AsyncClient(WHERE)))
elif KIND == "embedded":
    work(topics.open(WHERE))
else:
    asyncio.run(open_embedded())
