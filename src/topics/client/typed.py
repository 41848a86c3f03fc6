"""Payloads of one type: how they are read, and the records and jobs that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from topics.errors import BadPayload
from topics.formats.records import Record
from topics.results import Job, Tombstone

T = TypeVar("T")


class TypedRecord(NamedTuple, Generic[T]):
    """A record whose payload has a type. `meta` is JSON text."""

    seq: int
    ts: int
    node: str | None
    tag: str | None
    data: T
    meta: bytes | None


class TypedJob(NamedTuple, Generic[T]):
    """A job whose payload has a type, and its lease. `meta` is JSON text."""

    seq: int
    ts: int
    tag: str | None
    data: T
    meta: bytes | None
    lease_id: int
    deadline: int
    deliveries: int


class Payloads(Generic[T]):
    """Reads the payloads of a topic as one type: what msgspec can decode, or a model with `model_validate_json`."""

    def __init__(self, topic: str, payload: type[T]) -> None:
        self._topic = topic
        self._payload = payload
        validate: Callable[[bytes], T] | None = getattr(payload, "model_validate_json", None)
        decode: Callable[[bytes], T] = msgspec.json.Decoder(payload).decode if validate is None else validate
        self._decode = decode

    def value(self, seq: int, data: bytes) -> T:
        try:
            return self._decode(data)
        except (ValueError, RecursionError) as error:
            name = getattr(self._payload, "__name__", str(self._payload))
            raise BadPayload(self._topic, seq, name, str(error)) from error

    def record(self, record: Record) -> TypedRecord[T]:
        seq, ts, node, tag, data, meta = record
        return TypedRecord(seq, ts, node, tag, self.value(seq, data), meta)

    def item(self, item: Record | Tombstone) -> TypedRecord[T] | Tombstone:
        return item if isinstance(item, Tombstone) else self.record(item)

    def job(self, job: Job) -> TypedJob[T]:
        seq, ts, tag, data, meta, lease_id, deadline, deliveries = job
        return TypedJob(seq, ts, tag, self.value(seq, data), meta, lease_id, deadline, deliveries)


def leased(jobs: Iterable[TypedJob[T]]) -> list[Job]:
    """The leases of the jobs, as `ack` and its like take them."""
    return [
        Job(job.seq, job.ts, job.tag, b"null", job.meta, job.lease_id, job.deadline, job.deliveries) for job in jobs
    ]
