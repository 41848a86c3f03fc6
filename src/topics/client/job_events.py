"""Jobs out of the bytes of a stream of jobs. Pure."""

from __future__ import annotations

import msgspec

from topics.client.answers import error_from, from_json, job_of
from topics.client.retrying import Unreachable
from topics.errors import TopicsError, Unauthorized
from topics.protocol.sse_event import JobEvent, WorkEndEvent
from topics.protocol.sse_reader import SseReader
from topics.results import Job


class JobEvents:
    """Takes bytes, gives jobs. Raises the error with which the server ended the stream."""

    def __init__(self) -> None:
        self._sse = SseReader()

    def feed(self, data: bytes) -> list[Job]:
        jobs: list[Job] = []
        for event in self._sse.feed(data):
            if event.name == "job":
                jobs.append(job_of(from_json(event.data, JobEvent)))
            elif event.name == "error":
                raise _error_of(event.data)
        return jobs


def _error_of(data: bytes) -> TopicsError:
    try:
        end = msgspec.json.decode(data, type=WorkEndEvent)
    except msgspec.DecodeError:
        return Unreachable("the stream of jobs ended with an error")
    if end.code == 409:
        return error_from("topic_not_found", end.error, {"topic": end.topic})
    if end.code == Unauthorized.code:
        return error_from(Unauthorized.code, end.error)
    # The server stops, or it took the worker for dead: another stream can be opened.
    return Unreachable(f"the stream of jobs ended: {end.error}")
