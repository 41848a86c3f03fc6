"""What a job reads, looked up before a session is started: the server answers, topics, lakes and schemas are there."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from topics.spark.jobs.connection import Connection
from topics.spark.jobs.job_options import ImportOptions, ReplayOptions, RestoreOptions, SqlOptions, VerifyOptions
from topics.spark.jobs.named_sources import named_sources
from topics.spark.jobs.targets import LAKE, TOPIC, parse_target


def require_sources(options: Any) -> None:
    """Raises the error that the job would raise later, such as `TopicNotFound` or `LakeNotFound`."""
    if isinstance(options, SqlOptions):
        options = replace(options, inputs=(*options.inputs, *named_sources(options.query).inputs))
    for schema in _schemas_of(options):
        from topics.spark.shaping.schema_option import given_type

        given_type(schema)
    for address in _lakes_of(options):
        from topics.spark.lake.lake import open_lake

        open_lake(address)
    if isinstance(options, Connection) and _uses_server(options):
        with options.client() as client:
            client.health()
            for topic in _topics_of(options):
                client.state(topic)


def _uses_server(options: Connection) -> bool:
    if isinstance(options, VerifyOptions) and options.endpoint is None and (options.lakes or options.streams):
        return False
    if isinstance(options, SqlOptions):
        return any(parse_target(what).kind == TOPIC for what in _places(options))
    return getattr(options, "path", None) is None and getattr(options, "into_dir", None) is None


def _places(options: SqlOptions) -> Iterator[str]:
    yield from (what for _, what in options.inputs)
    if options.into is not None:
        yield options.into


def _topics_of(options: Connection) -> Iterator[str]:
    """Topics that must be there. A target may be made by the job."""
    if isinstance(options, ReplayOptions):
        yield options.source
    elif isinstance(options, SqlOptions):
        inputs = (parse_target(what) for _, what in options.inputs)
        yield from (name for source in inputs if source.kind == TOPIC for name in source.place.split(","))
    elif not isinstance(options, RestoreOptions):
        yield from getattr(options, "topics", ())


def _schemas_of(options: Any) -> Iterator[str]:
    if isinstance(options, SqlOptions):
        yield from options.schemas.values()
    elif isinstance(options, ImportOptions) and options.schema is not None:
        yield options.schema


def _lakes_of(options: Any) -> Iterator[str]:
    if isinstance(options, VerifyOptions):
        yield from options.lakes
    elif isinstance(options, SqlOptions):
        inputs = (parse_target(what) for _, what in options.inputs)
        yield from (source.place for source in inputs if source.kind == LAKE)
    elif isinstance(options, RestoreOptions) and options.lake is not None:
        yield options.lake
