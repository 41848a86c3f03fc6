"""Jobs that write topics in chunks: each chunk is an epoch of the writer of the job, staged and committed as a whole.

rule 1  Chunks are written one after the other. The server's ledger has the last epoch of the writer. So all chunks up
        to that epoch are in the topic, whole, and a run after a kill begins with the next chunk.
rule 2  A chunk may go to several topics, which commit one by one. So with several topics the last epoch of the ledger
        is written again: a topic that has this epoch adds nothing.
rule 3  Only the ledger says what is done. The ledger of a deleted topic is gone, so that the topic is filled again.
"""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from topics.client.sync.client import Client
from topics.spark.errors import BadOption
from topics.spark.jobs.connection import Connection
from topics.spark.jobs.job import Report, ReportProgress, WaveDone, run_waves
from topics.spark.jobs.spread import task_failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AnyChunk = TypeVar("AnyChunk")


def require_staging(client: Client) -> None:
    """Raises `BadOption` for a server without staged writes: a rerun would add records twice."""
    if "stage" not in client.health().features:
        raise BadOption(f"{client.url} has no staged writes, without which a rerun would add records twice")


def write_epochs(
    job: str,
    chunks: Sequence[AnyChunk],
    rows_of: "Callable[[AnyChunk], DataFrame]",
    *,
    connection: Connection,
    writer: str,
    topic: str | None,
    options: Mapping[str, str],
    weigh: Callable[[AnyChunk], int] | None = None,
    before: Callable[[AnyChunk], None] | None = None,
    report: ReportProgress | None = None,
) -> Report:
    """Writes the chunks that the ledger does not have. The first chunk is epoch 1. `topic` is None when rows name it.

    `before` is called before each chunk is written, and may wait.
    """
    from pyspark.errors import PySparkException

    started_s = monotonic()
    with connection.client() as client:
        done = _epochs_done(client, writer, topic)

        def write(wave: Sequence[tuple[int, AnyChunk]]) -> WaveDone:
            ((epoch, chunk),) = wave
            if before is not None:
                before(chunk)
            given = {
                **connection.format_options(),
                **options,
                "writeMode": "staged",
                "writerId": writer,
                "epoch": str(epoch),
            }
            if topic is not None:
                given["topic"] = topic
            try:
                rows_of(chunk).write.format("topics").options(**given).mode("append").save()
            except PySparkException as error:
                raise task_failure(error) from error
            return WaveDone(_records_of(client, writer, epoch), weigh(chunk) if weigh else 0)

        left = list(enumerate(chunks, 1))[done:]
        moved = run_waves(
            job,
            left,
            write,
            cores=1,
            # A chunk is a commit, and its write uses all cores.
            wave_items=1,
            weigh=(lambda item: weigh(item[1])) if weigh else None,
            report=report,
        )
    detail: dict[str, Any] = {"writer": writer, "epochs": len(chunks)}
    return Report(
        job=job,
        records=moved.records,
        bytes=moved.bytes,
        seconds=monotonic() - started_s,
        items_done=moved.items,
        items_skipped=done,
        detail=detail,
    )


def _epochs_done(client: Client, writer: str, topic: str | None) -> int:
    last = max((known.epoch for known in client.writer(writer).topics), default=0)
    return last if topic is not None else max(0, last - 1)


def _records_of(client: Client, writer: str, epoch: int) -> int:
    """How many records the epoch added, by the ledger."""
    return sum(known.last_seq - known.first_seq + 1 for known in client.writer(writer).topics if known.epoch == epoch)
