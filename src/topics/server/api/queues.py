"""Endpoints of queues: claim, ack, nack, extend."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any, Final

from msgspec import UNSET

from topics.engine.queues.jobs import Claim, Claimed
from topics.engine.queues.queues import Queues
from topics.errors import BatchTooLarge, InvalidRequest, TopicsError
from topics.protocol import response_body
from topics.protocol.body_decoder import (
    ACK_DECODER,
    CLAIM_DECODER,
    EXTEND_DECODER,
    NACK_DECODER,
    VALUES_MAX,
    BodyDecoder,
    TooManyValues,
)
from topics.protocol.job_text import job_text, lease_id_of
from topics.protocol.record_text import json_string
from topics.protocol.request_body import LONG_POLL_MS_MAX, AckBody, ClaimBody, ExtendBody, NackBody
from topics.results import Extended, Job, Settled
from topics.server.app import Application
from topics.server.auth import READ, WRITE
from topics.server.http.exchange import Exchange, Response
from topics.server.http.routes import Body, Endpoint
from topics.server.settings_schema import ServerSettings

_SEQS: Final = re.compile(rb'"seqs"\s*:\s*\[([0-9,\s]*)\]')


class QueuesApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        self._claim_max = app.settings.max_claim
        self._node_bytes_max = app.settings.max_node_bytes
        add = app.routes.add
        add("POST", "/v0/topics/{topic}/claim", Endpoint("claim", self.claim, READ | WRITE, Body.REFUSED_WHEN_EMPTY))
        add("POST", "/v0/topics/{topic}/ack", Endpoint("ack", self.ack, WRITE, Body.REQUIRED))
        add("POST", "/v0/topics/{topic}/nack", Endpoint("nack", self.nack, WRITE, Body.REQUIRED))
        add("POST", "/v0/topics/{topic}/extend", Endpoint("extend", self.extend, WRITE, Body.REQUIRED))

        app.follow_settings(self._use_settings)

    def _use_settings(self, settings: ServerSettings) -> None:
        self._claim_max = settings.max_claim
        self._node_bytes_max = settings.max_node_bytes

    @property
    def _queues(self) -> Queues:
        return self._app.open_engine().engine.queues

    # Claims.

    def claim(self, exchange: Exchange) -> None:
        if not exchange.body:
            raise InvalidRequest('a claim has a body that names the node: {"node":…}')
        body: ClaimBody = CLAIM_DECODER.decode(exchange.body)
        queues = self._queues
        queues.check(exchange.name)
        check_node(body.node, self._node_bytes_max)
        _PendingClaim(self._app, exchange, body, min(max(body.max, 1), self._claim_max)).start()

    # Calls of the node that holds the leases.

    def ack(self, exchange: Exchange) -> None:
        body: AckBody = self._decoded(ACK_DECODER, exchange)
        lease_ids = self._checked_lease_ids(body)
        self._queues.ack(exchange.name, body.node, body.seqs, lease_ids, partial(self._acked, exchange))

    def _acked(self, exchange: Exchange, result: Settled | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
        elif not exchange.answered:
            exchange.answer(
                response_body.Acked(
                    topic=exchange.name,
                    acked=result.settled,
                    skipped=result.skipped,
                    ready=result.ready,
                    in_flight=result.in_flight,
                    performance=_performance(exchange, result),
                )
            )

    def nack(self, exchange: Exchange) -> None:
        body: NackBody = self._decoded(NACK_DECODER, exchange)
        lease_ids = self._checked_lease_ids(body)
        self._queues.nack(
            exchange.name,
            body.node,
            body.seqs,
            lease_ids,
            body.delay_ms,
            partial(self._nacked, exchange),
            reason=body.reason,
        )

    def _nacked(self, exchange: Exchange, result: Settled | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
        elif not exchange.answered:
            exchange.answer(
                response_body.Nacked(
                    topic=exchange.name,
                    nacked=result.settled,
                    skipped=result.skipped,
                    ready=result.ready,
                    in_flight=result.in_flight,
                    performance=_performance(exchange, result),
                )
            )

    def extend(self, exchange: Exchange) -> None:
        body: ExtendBody = self._decoded(EXTEND_DECODER, exchange)
        lease_ids = self._checked_lease_ids(body)
        self._queues.extend(
            exchange.name, body.node, body.seqs, lease_ids, body.lease_ms, partial(self._extended, exchange)
        )

    def _extended(self, exchange: Exchange, result: Extended | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
        elif not exchange.answered:
            exchange.answer(
                response_body.Extended(
                    topic=exchange.name,
                    extended=len(result.deadlines),
                    skipped=result.skipped,
                    deadlines=result.deadlines,
                    performance=exchange.performance(),
                )
            )

    def _decoded(self, decoder: BodyDecoder, exchange: Exchange) -> Any:
        try:
            return decoder.decode(exchange.body, max(VALUES_MAX, 4 * self._claim_max))
        except TooManyValues:
            seqs = _SEQS.search(exchange.body)
            if seqs is None:
                raise
            raise self._too_many_seqs(seqs[1].count(b",") + 1) from None

    def _too_many_seqs(self, count: int) -> BatchTooLarge:
        return BatchTooLarge(f"a call names at most {self._claim_max} seqs", {"seqs": count, "max": self._claim_max})

    def _checked_lease_ids(self, body: AckBody | NackBody | ExtendBody) -> list[int | None]:
        """The ids of the leases; None where any lease of the node will do.

        The checks run in the order of the contract: tokens, node, number of seqs, number of tokens.
        """
        lease_ids = [lease_id_of(token) for token in body.lease_ids]
        if not body.node:
            raise InvalidRequest("node is empty: it names the holder of the jobs")
        if len(body.seqs) > self._claim_max:
            raise self._too_many_seqs(len(body.seqs))
        if lease_ids and len(lease_ids) != len(body.seqs):
            raise InvalidRequest("lease_ids are as many as seqs, or none; an empty one means any lease of the node")
        return lease_ids


class _PendingClaim:
    """One claim, from its call to its answer."""

    __slots__ = ("_app", "_body", "_claim", "_engine", "_exchange", "_jobs", "_max_jobs", "_queues", "_timer")

    def __init__(self, app: Application, exchange: Exchange, body: ClaimBody, max_jobs: int) -> None:
        self._app = app
        self._engine = app.open_engine().engine
        self._queues = self._engine.queues
        self._exchange = exchange
        self._body = body
        self._max_jobs = max_jobs
        self._claim: Claim | None = None
        # Leased to the client, which may not have been told yet: a large answer is compressed first.
        self._jobs: list[Job] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        body, exchange = self._body, self._exchange
        wait_ms = min(body.wait_ms, LONG_POLL_MS_MAX)
        self._claim = self._queues.claim(
            exchange.name, body.node, self._max_jobs, body.lease_ms, self._claimed, waits=wait_ms > 0
        )
        if exchange.answered:
            return
        exchange.on_gone = self._gone
        if wait_ms:
            self._timer = self._app.loop.call_later(wait_ms / 1000, self._end_wait)
            self._app.waiting[exchange] = self._end_wait

    def _end_wait(self) -> None:
        assert self._claim is not None
        self._queues.end_wait(self._claim)
        # The answer is sent in this call: a server that stops closes the connection right after it.
        self._engine.flush()

    def _gone(self) -> None:
        """The client went away before it was told of a job: its claim takes none."""
        self._forget_wait()
        assert self._claim is not None
        self._queues.cancel(self._claim)
        self._queues.give_back(self._claim, self._jobs)

    def _forget_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._app.waiting.pop(self._exchange, None)

    def _claimed(self, result: Claimed | TopicsError) -> None:
        exchange = self._exchange
        self._forget_wait()
        if exchange.answered:
            if not isinstance(result, TopicsError):
                # The client went away after the jobs were leased to it, and before it was told.
                assert self._claim is not None
                self._queues.give_back(self._claim, result.jobs)
            return
        try:
            if isinstance(result, TopicsError):
                exchange.fail(result)
            else:
                self._jobs = result.jobs
                text = claimed_text(exchange.name, result, exchange.elapsed_ms())
                exchange.reply(Response(200, text))
        except Exception:  # noqa: BLE001 - a bug in one answer must not keep the others from their callers.
            self._app.fail_internally(exchange)


def check_node(node: str, bytes_max: int) -> None:
    if not node or len(node.encode()) > bytes_max:
        raise InvalidRequest(f"node names the node that claims: 1 to {bytes_max} bytes")


def claimed_text(topic: str, result: Claimed, elapsed_ms: float) -> bytes:
    """The body `response_body.Claimed`, rendered from stored bytes."""
    return b'{"topic":%b,"claimed":[%b],"count":%d,"ready":%d,"performance":{"server_total_ms":%.3f}}' % (
        json_string(topic),
        b",".join([b"{%b}" % job_text(*job) for job in result.jobs]),
        len(result.jobs),
        result.ready,
        elapsed_ms,
    )


def _performance(exchange: Exchange, result: Settled) -> response_body.Performance:
    return response_body.Performance(
        server_total_ms=round(exchange.elapsed_ms(), 3),
        fsync_ms=round(result.sync_ms, 3) if result.sync_ms > 0 else UNSET,
    )
