"""Endpoints of queues: claim, ack, nack, extend (http-api.md §16.1 to §16.3)."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from topics.engine.queues.jobs import Claimed, Extended, Settled
from topics.engine.queues.queues import Queues
from topics.errors import BatchTooLarge, InvalidRequest, TopicsError
from topics.protocol.job_text import job_text, lease_id_of
from topics.protocol.record_text import json_string
from topics.protocol.request_body import (
    ACK_DECODER,
    CLAIM_DECODER,
    EXTEND_DECODER,
    NACK_DECODER,
    AckBody,
    ClaimBody,
    ExtendBody,
    NackBody,
)
from topics.server.app import Application
from topics.server.auth import READ, WRITE
from topics.server.http.exchange import Exchange, Response
from topics.server.http.routes import Body, Endpoint

_encode: Final = msgspec.json.Encoder().encode


class QueuesApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        self._claim_max = app.settings.max_claim
        self._node_bytes_max = app.settings.max_node_bytes
        add = app.routes.add
        add("POST", "/v0/topics/{topic}/claim", Endpoint("claim", self.claim, READ | WRITE, Body.MISSED))
        add("POST", "/v0/topics/{topic}/ack", Endpoint("ack", self.ack, WRITE, Body.REQUIRED))
        add("POST", "/v0/topics/{topic}/nack", Endpoint("nack", self.nack, WRITE, Body.REQUIRED))
        add("POST", "/v0/topics/{topic}/extend", Endpoint("extend", self.extend, WRITE, Body.REQUIRED))

    @property
    def _queues(self) -> Queues:
        return self._app.open_engine().engine.queues

    # Claim.

    def claim(self, exchange: Exchange) -> None:
        if not exchange.body:
            raise InvalidRequest('a claim says who claims: {"node":…}')
        body: ClaimBody = CLAIM_DECODER.decode(exchange.body)
        queues = self._queues
        queues.check(exchange.name)
        check_node(body.node, self._node_bytes_max)
        max_jobs = min(max(body.max, 1), self._claim_max)
        claim = queues.claim(exchange.name, body.node, max_jobs, body.lease_ms, partial(self._claimed, exchange))

        def gone() -> None:
            claim.cancel()

        if not exchange.answered:
            exchange.on_gone = gone

    def _claimed(self, exchange: Exchange, result: Claimed | TopicsError) -> None:
        if exchange.answered:
            return
        try:
            if isinstance(result, TopicsError):
                exchange.fail(result)
                return
            exchange.reply(
                Response(
                    200,
                    b'{"topic":%b,"claimed":[%b],"count":%d,"ready":%d,"performance":{"server_total_ms":%.3f}}'
                    % (
                        json_string(exchange.name),
                        b",".join([b"{%b}" % job_text(*job) for job in result.jobs]),
                        len(result.jobs),
                        result.ready,
                        exchange.elapsed_ms(),
                    ),
                )
            )
        except Exception:  # noqa: BLE001 - the engine must not be left half way through a group.
            self._app.fail_internally(exchange)

    # What holders do.

    def ack(self, exchange: Exchange) -> None:
        body: AckBody = ACK_DECODER.decode(exchange.body)
        lease_ids = self._checked(body)
        self._queues.ack(exchange.name, body.node, body.seqs, lease_ids, partial(self._settled, exchange, "acked"))

    def nack(self, exchange: Exchange) -> None:
        body: NackBody = NACK_DECODER.decode(exchange.body)
        lease_ids = self._checked(body)
        self._queues.nack(
            exchange.name, body.node, body.seqs, lease_ids, body.delay_ms, partial(self._settled, exchange, "nacked")
        )

    def extend(self, exchange: Exchange) -> None:
        body: ExtendBody = EXTEND_DECODER.decode(exchange.body)
        lease_ids = self._checked(body)
        self._queues.extend(
            exchange.name, body.node, body.seqs, lease_ids, body.lease_ms, partial(self._extended, exchange)
        )

    def _checked(self, body: AckBody | NackBody | ExtendBody) -> list[int | None]:
        """The ids of the leases, None where any will do. In the order of checks of the contract."""
        lease_ids = [lease_id_of(token) for token in body.lease_ids]
        if not body.node:
            raise InvalidRequest("node says whose jobs these are: it is not empty")
        if len(body.seqs) > self._claim_max:
            raise BatchTooLarge(
                f"a call names at most {self._claim_max} seqs", {"seqs": len(body.seqs), "max": self._claim_max}
            )
        if lease_ids and len(lease_ids) != len(body.seqs):
            raise InvalidRequest("lease_ids are as many as seqs, or none; an empty one means any lease of the node")
        return lease_ids

    def _settled(self, exchange: Exchange, verb: str, result: Settled | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        members = {
            "topic": exchange.name,
            verb: result.settled,
            "skipped": result.skipped,
            "ready": result.ready,
            "in_flight": result.in_flight,
        }
        _reply(exchange, members, result.sync_ms)

    def _extended(self, exchange: Exchange, result: Extended | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        members = {
            "topic": exchange.name,
            "extended": len(result.deadlines),
            "skipped": result.skipped,
            "deadlines": result.deadlines,
        }
        _reply(exchange, members)


def check_node(node: str, bytes_max: int) -> None:
    if not node or len(node.encode()) > bytes_max:
        raise InvalidRequest(f"node says who claims: 1 to {bytes_max} bytes")


def _reply(exchange: Exchange, members: dict[str, Any], sync_ms: float = 0.0) -> None:
    if exchange.answered:
        return
    performance = {"server_total_ms": round(exchange.elapsed_ms(), 3)}
    if sync_ms > 0:
        performance["fsync_ms"] = round(sync_ms, 3)
    members["performance"] = performance
    exchange.reply(Response(200, _encode(members)))
