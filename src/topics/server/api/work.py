"""A stream of jobs: the server leases jobs to a worker and pushes them.

The stream leases up to `max` jobs at a time, and more when some of them are done. When the connection ends, the jobs
of the worker that are not acked are ready again at once. Loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from topics.engine.queues.jobs import Claim, Claimed
from topics.engine.queues.queues import Queues
from topics.errors import Closed, NotAQueue, TopicNotFound, TopicsError
from topics.protocol.job_text import job_text
from topics.protocol.record_text import json_string
from topics.protocol.sse import CONTENT_TYPE, RETRY, event_text, id_line
from topics.protocol.sse_event import WorkEndEvent
from topics.results import Job
from topics.server.api.queues import check_node
from topics.server.api.watch import STREAM_HEADERS, check_accept
from topics.server.app import Application
from topics.server.auth import READ, WRITE
from topics.server.http.exchange import Exchange, Stream
from topics.server.http.query import Query
from topics.server.http.routes import Endpoint
from topics.server.live.delivery import SLOW_CONSUMER, SLOW_CONSUMER_MESSAGE
from topics.server.live.open_streams import STOPPING, StreamEnd
from topics.server.live.sse_feed import Heartbeat

HEARTBEAT_S: Final = 15.0
# The queue wakes the stream when there may be jobs. The stream also looks by itself: a job that it has may be deleted.
RECHECK_S: Final = 5.0
# When the stream looks again after the log took no claim.
RETRY_S: Final = 0.25

_encode: Final = msgspec.json.Encoder().encode


class WorkApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        app.routes.add(
            "GET",
            "/v0/topics/{topic}/work",
            Endpoint("work", self.work, READ | WRITE, takes_query_token=True),
        )

    def work(self, exchange: Exchange) -> None:
        app = self._app
        check_accept(exchange)
        query = Query(exchange.query)
        node = query.text("node") or ""
        check_node(node, app.settings.max_node_bytes)
        engine = app.open_engine().engine
        engine.queues.check(exchange.name)
        key = exchange.key
        assert key is not None
        app.open_streams.check(key)
        stream = exchange.begin_stream(200, CONTENT_TYPE, STREAM_HEADERS)
        if stream.is_over:
            return
        max_jobs = min(max(query.count("max", 1), 1), app.settings.max_claim)
        lease_ms = query.count("lease_ms", -1)
        worker = _Worker(app, stream, exchange.name, node, max_jobs, None if lease_ms < 0 else lease_ms)
        worker.on_end = app.open_streams.add(key, worker.shut_down)
        worker.start()


class _Worker:
    """One open stream of jobs, and its leases."""

    def __init__(
        self, app: Application, stream: Stream, name: str, node: str, max_jobs: int, lease_ms: int | None
    ) -> None:
        self._app = app
        self._loop = app.loop
        self._engine = app.open_engine().engine
        self._topic = self._engine.topic(name)
        self._stream = stream
        self._name = name
        self._node = node
        self._max_jobs = max_jobs
        self._lease_ms = lease_ms
        # (seq, lease id) of the jobs that were delivered on this stream and may still be leased.
        self._leases: list[tuple[int, int]] = []
        self._claim: Claim | None = None
        self._is_claiming = False
        # The queue woke the stream during a claim.
        self._must_look_again = False
        self._is_due = False
        self._is_over = False
        self._heartbeat = Heartbeat(stream, app.loop, HEARTBEAT_S, self._engine.now_ms)
        self._timer: asyncio.TimerHandle | None = None
        self.on_end = _nothing
        stream.on_ready = self._refill_soon
        stream.on_stalled = self._give_up
        stream.on_gone = self._gone

    @property
    def _queues(self) -> Queues:
        return self._engine.queues

    def start(self) -> None:
        self._stream.send(RETRY)
        self._recheck()

    def _recheck(self) -> None:
        self._refill_soon()
        self._look_later(RECHECK_S)

    def _look_later(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._recheck)

    def _refill_soon(self) -> None:
        """Refills in the next turn of the loop: the connection may be in the middle of its work now."""
        if not self._is_due and not self._is_over:
            self._is_due = True
            self._loop.call_soon(self._refill)

    def _refill(self) -> None:
        self._is_due = False
        if self._is_over:
            return
        if self._is_claiming:
            self._must_look_again = True
            return
        try:
            if self._engine.topics.get(self._name) is not self._topic:
                # A new queue of the same name is another queue.
                raise TopicNotFound(self._name)
            self._leases = self._queues.live_leases(self._name, self._leases)
            self._queues.wait_jobs(self._name, self._refill_soon)
            wanted = self._max_jobs - len(self._leases)
            if wanted > 0 and self._stream.is_ready:
                self._is_claiming = True
                claim = self._queues.claim(self._name, self._node, wanted, self._lease_ms, self._claimed)
                # The claim may have been answered already.
                self._claim = claim if self._is_claiming else None
        except TopicsError as error:
            self._is_claiming = False
            self._fail(error)

    def _claimed(self, result: Claimed | TopicsError) -> None:
        self._is_claiming = False
        self._claim = None
        if self._is_over:
            return
        if self._must_look_again:
            self._must_look_again = False
            self._refill_soon()
        if isinstance(result, TopicsError):
            self._fail(result)
            return
        for job in result.jobs:
            self._leases.append((job.seq, job.lease_id))
            self._stream.send(job_event_text(self._name, job))
        if result.jobs:
            self._heartbeat.note_output()

    # The end.

    def _fail(self, error: TopicsError) -> None:
        """Ends the stream if the queue is gone or the server stops. After other errors it tries again soon."""
        if isinstance(error, (TopicNotFound, NotAQueue)):
            self._send_error(409, error.message)
            self._end()
        elif isinstance(error, Closed):
            self.shut_down(STOPPING)
        else:
            self._look_later(RETRY_S)

    def shut_down(self, end: StreamEnd) -> None:
        """The server ends the stream."""
        self._send_error(*end)
        self._end()

    def _give_up(self) -> None:
        self._send_error(SLOW_CONSUMER, SLOW_CONSUMER_MESSAGE)
        self._end()

    def _send_error(self, code: int | str, message: str) -> None:
        event = WorkEndEvent(code=code, error=message, topic=self._name)
        self._stream.send(event_text(b"error", _encode(event)))

    def _end(self) -> None:
        self._stream.end()
        self._stop()
        self._release()

    def _gone(self) -> None:
        if not self._is_over:
            self._stop()
            # In the next turn, because the connection is still telling its other streams that it ended.
            self._loop.call_soon(self._release)

    def _stop(self) -> None:
        self._is_over = True
        if self._claim is not None:
            self._queues.cancel(self._claim)
        if self._timer is not None:
            self._timer.cancel()
        self._heartbeat.stop()
        self._queues.cancel_wait(self._name, self._refill_soon)
        self.on_end()

    def _release(self) -> None:
        if self._engine.topics.get(self._name) is self._topic:
            self._queues.release(self._name, self._leases)


def job_event_text(topic: str, job: Job) -> bytes:
    """The event `sse_event.JobEvent`, rendered from stored bytes."""
    data = b'{"topic":%b,%b}' % (json_string(topic), job_text(*job))
    return id_line(b"%d" % job.seq) + event_text(b"job", data)


def _nothing() -> None:
    pass
