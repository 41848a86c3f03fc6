"""Traces over a log: a record carries the trace of its writer in `meta`, and the worker continues it.

The W3C header `traceparent` (and `tracestate`, if there is one) is a member of `meta`. Needs the package
`opentelemetry-api`; without an SDK beside it nothing is recorded, and nothing is written into `meta`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from topics.errors import SettingsError
from topics.protocol.payload_text import payload_text
from topics.results import Job, NewRecord


def require() -> None:
    """Raises `SettingsError` with what to install."""
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError as error:
        raise SettingsError("tracing needs the package opentelemetry-api: pip install 'topics-log[otel]'") from error


def traced_payloads(payloads: Sequence[Any]) -> Sequence[Any]:
    """The payloads with the current trace in their `meta`. A `meta` that is no object stays as it is."""
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier or isinstance(payloads, str | bytes | dict):
        return payloads
    return [_traced(one if type(one) is NewRecord else NewRecord(one), carrier) for one in payloads]


def _traced(record: NewRecord, carrier: dict[str, str]) -> NewRecord:
    members: object = {}
    if record.meta is not None:
        members = msgspec.json.decode(payload_text(record.meta))
    if not isinstance(members, dict):
        return record
    return NewRecord(record.data, record.tag, record.node, {**carrier, **members})


@contextmanager
def job_span(queue: str, job: Job) -> Iterator[None]:
    """A span for the work on a job, in the trace of the job's writer."""
    from opentelemetry import propagate, trace

    tracer = trace.get_tracer("topics")
    attributes = {
        "messaging.system": "topics",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.message.id": str(job.seq),
    }
    with tracer.start_as_current_span(
        f"process {queue}",
        context=propagate.extract(_carrier(job)),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    ):
        yield


def _carrier(job: Job) -> dict[str, str]:
    try:
        members = msgspec.json.decode(job.meta) if job.meta is not None else None
    except msgspec.DecodeError:
        return {}
    if not isinstance(members, dict):
        return {}
    return {name: text for name, text in members.items() if isinstance(text, str)}
