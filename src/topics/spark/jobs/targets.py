"""Where the rows of a job go: `topic:NAME`, `lake:ADDRESS`, or any format of Spark, such as `parquet:PATH`."""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from topics.client.sync.client import Client
from topics.spark.errors import BadOption
from topics.spark.free_place import require_free_place
from topics.spark.jobs.connection import Connection
from topics.spark.jobs.epochs import require_staging
from topics.spark.jobs.job_options import WriteMode
from topics.spark.jobs.lake_write import write_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC: Final = "topic"
LAKE: Final = "lake"


class Target(NamedTuple):
    """`kind` is `topic`, `lake` or the name of a format. `place` is the name of the topic, or the address."""

    kind: str
    place: str


def parse_target(text: str) -> Target:
    kind, colon, place = text.partition(":")
    if not colon or not kind or not place:
        raise BadOption(
            f"{text!r} is no place for rows: give topic:NAME, lake:ADDRESS, or a format such as parquet:PATH"
        )
    return Target(kind, place)


def write_rows(
    rows: "DataFrame",
    target: Target,
    *,
    connection: Connection,
    writer: str | None,
    epoch: int,
    creates: bool = False,
    mode: WriteMode = "errorifexists",
) -> int | None:
    """How many rows were written; None when the target already has this epoch of the writer.

    Mode `overwrite` replaces the files, or all older records of the topic. In other modes rows are appended to a topic.
    Rows are always appended to a lake.
    """
    if target.kind in (TOPIC, LAKE) and writer is None:
        raise BadOption(
            f"give --writer-id for {target.kind}:{target.place}: a rerun is known by it and adds nothing twice"
        )
    if target.kind == TOPIC:
        assert writer is not None
        return _write_topic(
            rows, target.place, connection, writer, epoch, creates=creates, replaces=mode == "overwrite"
        )
    if target.kind == LAKE:
        assert writer is not None
        return write_lake(rows, target.place, writer=writer, epoch=epoch)
    return _write_files(rows, target, mode)


def _write_topic(
    rows: "DataFrame", topic: str, connection: Connection, writer: str, epoch: int, *, creates: bool, replaces: bool
) -> int | None:
    with connection.client() as client:
        require_staging(client)
        known = _epoch_of(client, writer, topic)
        if known is not None and known >= epoch:
            return None
        options = topic_options(connection, topic, creates=creates, replaces=replaces)
        rows.write.format("topics").options(**options, writerId=writer, epoch=str(epoch)).mode(
            "overwrite" if replaces else "append"
        ).save()
        return sum(
            done.last_seq - done.first_seq + 1
            for done in client.writer(writer).topics
            if (done.topic, done.epoch) == (topic, epoch)
        )


def topic_options(connection: Connection, topic: str, *, creates: bool, replaces: bool = False) -> dict[str, str]:
    """Options of a staged write to a topic."""
    options = {**connection.format_options(), "topic": topic, "writeMode": "staged"}
    if creates:
        options["createTopic"] = "true"
    if replaces:
        options["allowTruncate"] = "true"
    return options


def _epoch_of(client: Client, writer: str, topic: str) -> int | None:
    return next((done.epoch for done in client.writer(writer).topics if done.topic == topic), None)


def _write_files(rows: "DataFrame", target: Target, mode: WriteMode) -> int:
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    require_free_place(target.place)
    seen = Observation("rows")
    rows.observe(seen, count(lit(1)).alias("rows")).write.format(target.kind).mode(mode).save(target.place)
    found: dict[str, Any] = seen.get
    return int(found["rows"])
