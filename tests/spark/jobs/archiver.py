"""An archive run in a process of its own that says where it is, so that a test can kill it there.

    python -m tests.spark.jobs.archiver ENDPOINT LAKE [--spark]

It prints a line after each task, whose files are in the lake and do not count yet, and after each wave. It goes on when
it reads a line. With `--spark` tasks run on Spark; then it prints a line after each wave and does not wait.
"""

import sys
from collections.abc import Callable, Sequence

from tests.spark.in_process import InProcess
from topics.spark.jobs import archive
from topics.spark.jobs.archive import Archiver
from topics.spark.jobs.archive_plan import ArchiveItem
from topics.spark.jobs.job import Progress
from topics.spark.jobs.job_options import ArchiveOptions
from topics.spark.lake.state import LakeChange


def stop_at(place: str) -> None:
    print(place, flush=True)
    sys.stdin.readline()


def spread_out(items: Sequence[ArchiveItem], work: Callable[[ArchiveItem], LakeChange]) -> list[LakeChange]:
    parts = []
    for item in items:
        parts.append(work(item))
        stop_at("task")
    return parts


def report(_: Progress) -> None:
    stop_at("wave")


def run_on_spark(config: ArchiveOptions) -> None:
    import topics.spark

    spark = topics.spark.session("archiver", master="local[2]", conf={"spark.driver.memory": "1g"})
    archive.run(spark, config, report=lambda _: print("wave", flush=True))
    print("done", flush=True)


if __name__ == "__main__":
    endpoint, lake = sys.argv[1:3]
    if "--spark" in sys.argv:
        run_on_spark(ArchiveOptions(endpoint=endpoint, lake=lake, file_records=100))
    else:
        Archiver(ArchiveOptions(endpoint=endpoint, lake=lake, file_records=200), InProcess(spread_out), report).run()
        stop_at("done")
