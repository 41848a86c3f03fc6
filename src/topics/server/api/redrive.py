"""Endpoints of a queue as a whole: what is in it and who has it, and redrive."""

from __future__ import annotations

import logging
from functools import partial

from msgspec import UNSET, Raw

from topics.engine.engine import Engine
from topics.engine.queues.jobs import LeaseEntry
from topics.engine.queues.redrive import Redrive, Redriven, RedriveSpec
from topics.errors import Forbidden, InvalidRequest, TopicsError
from topics.limits import REDRIVE_MS_MAX
from topics.protocol import response_body
from topics.protocol.body_decoder import REDRIVE_DECODER, member_names
from topics.protocol.config_warnings import redrive_warnings
from topics.protocol.job_text import lease_token
from topics.protocol.request_body import RedriveBody
from topics.protocol.tag_match import TagMatch
from topics.server.api.list_cursor import after_of, cursor_after
from topics.server.api.records import key_header
from topics.server.api.topics import dead_count, oldest_age_ms
from topics.server.api.up_to_date import when_up_to_date
from topics.server.app import Application
from topics.server.auth import DELETE, READ, WRITE
from topics.server.hidden_names import check_topics
from topics.server.http.exchange import Exchange
from topics.server.http.query import Query
from topics.server.http.routes import Body, Endpoint
from topics.server.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

logger = logging.getLogger(__name__)


class RedriveApi:
    """A redrive shows, appends and deletes records, so it needs the scopes of all three."""

    def __init__(self, app: Application) -> None:
        self._app = app
        add = app.routes.add
        add("GET", "/v0/topics/{topic}/queue", Endpoint("get_queue", self.state, READ))
        add(
            "POST",
            "/v0/topics/{topic}/redrive",
            Endpoint("redrive", self.redrive, READ | WRITE | DELETE, Body.OPTIONAL),
        )

    @property
    def _engine(self) -> Engine:
        return self._app.open_engine().engine

    # The queue.

    def state(self, exchange: Exchange) -> None:
        when_up_to_date(self._app, exchange, exchange.name, partial(self._list_leases, exchange))

    def _list_leases(self, exchange: Exchange) -> None:
        query = Query(exchange.query)
        page_size = min(max(query.count("page_size", PAGE_SIZE_DEFAULT), 1), PAGE_SIZE_MAX)
        queues = self._engine.queues
        queues.check(exchange.name)
        # One more than is shown, to know whether there are more.
        steps = queues.leases(exchange.name, _after_seq(query.text("cursor")), page_size + 1)
        self._app.run_in_steps(exchange, steps, partial(self._show, exchange, page_size))

    def _show(self, exchange: Exchange, page_size: int, leases: list[LeaseEntry]) -> None:
        engine, key = self._engine, exchange.key
        assert key is not None
        engine.queues.check(exchange.name)
        topic = engine.topic(exchange.name)
        topic.refresh(engine.now_ms())
        depth = engine.queues.depth(topic)
        dead_letter = topic.config.dead_letter
        is_hidden = dead_letter is not None and not key.may_name(dead_letter)
        if is_hidden:
            dead_letter = None
        shown = leases[:page_size]
        exchange.answer(
            response_body.QueueState(
                topic=exchange.name,
                ready=depth.ready,
                in_flight=depth.in_flight,
                delayed=depth.delayed,
                dead_lettered=depth.dead_lettered,
                oldest_ready_age_ms=oldest_age_ms(engine, depth),
                dead=dead_count(engine, topic, key),
                dead_letter=dead_letter,
                names_hidden=1 if is_hidden else UNSET,
                leases=[
                    response_body.QueueLease(
                        seq=lease.seq,
                        node=lease.node,
                        lease_id=lease_token(lease.lease_id),
                        deadline=lease.deadline,
                        deliveries=lease.deliveries,
                    )
                    for lease in shown
                ],
                next_cursor=cursor_after(str(shown[-1].seq)) if len(leases) > page_size else UNSET,
                performance=exchange.performance(),
            )
        )

    # Redrive.

    def redrive(self, exchange: Exchange) -> None:
        body: RedriveBody = REDRIVE_DECODER.decode(exchange.body) if exchange.body else RedriveBody()
        warnings = redrive_warnings(member_names(exchange.body)) if exchange.body else []
        match = None if body.match is None else TagMatch.parse(body.match)
        key, engine = exchange.key, self._engine
        assert key is not None
        if body.to is not None:
            check_topics(key, (body.to,))
        source, _ = engine.queues.redriving.topics_of(exchange.name, body.to)
        if not key.may_name(source):
            raise Forbidden("the key is not for the dead-letter topic of this queue")
        spec = RedriveSpec(
            to=body.to,
            tag=match.text if match is not None and not match.is_prefix else None,
            tag_prefix=match.text if match is not None and match.is_prefix else None,
            from_ts=body.from_ts,
            to_ts=body.to_ts,
            from_seq=body.from_seq,
            until_seq=body.until_seq,
            limit=body.limit,
            rate=body.rate,
            max_ms=min(body.max_ms, REDRIVE_MS_MAX),
            dry_run=body.dry_run,
            key=body.idempotency_key if body.idempotency_key is not None else key_header(exchange),
        )
        when_up_to_date(self._app, exchange, source, _PendingRedrive(self._app, exchange, spec, warnings).start)


class _PendingRedrive:
    """One redrive, from its call to its answer."""

    __slots__ = ("_app", "_engine", "_exchange", "_run", "_spec", "_warnings")

    def __init__(self, app: Application, exchange: Exchange, spec: RedriveSpec, warnings: list[str]) -> None:
        self._app = app
        self._engine = app.open_engine().engine
        self._exchange = exchange
        self._spec = spec
        self._warnings = warnings
        self._run: Redrive | None = None

    def start(self) -> None:
        exchange = self._exchange
        self._run = self._engine.queues.redrive(exchange.name, self._spec, self._ended)
        exchange.on_gone = self._gone
        self._app.waiting[exchange] = self._stop

    def _stop(self) -> None:
        """The server stops: the answer says how far the redrive came."""
        assert self._run is not None
        self._engine.queues.redriving.stop(self._run)
        self._engine.flush()

    def _gone(self) -> None:
        """The client went away: no further batch is moved."""
        self._app.waiting.pop(self._exchange, None)
        assert self._run is not None
        self._engine.queues.cancel_redrive(self._run)

    def _ended(self, result: Redriven | TopicsError) -> None:
        exchange = self._exchange
        self._app.waiting.pop(exchange, None)
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        self._log(result)
        if not exchange.answered:
            exchange.answer(
                response_body.Redriven(
                    topic=exchange.name,
                    source=result.source,
                    dest=result.dest,
                    moved=result.moved,
                    matched=result.matched,
                    skipped=result.skipped,
                    next_from_seq=result.next_from_seq,
                    until_seq=result.until_seq,
                    remaining=result.remaining,
                    stopped=result.stopped,
                    dry_run=self._spec.dry_run,
                    jobs=_shown_jobs(result),
                    warnings=self._warnings or UNSET,
                    performance=exchange.performance(),
                )
            )

    def _log(self, result: Redriven) -> None:
        """Says in the log of the server who moved jobs."""
        if not result.moved:
            return
        key = self._exchange.key
        assert key is not None
        fields = {
            "queue": self._exchange.name,
            "source": result.source,
            "dest": result.dest,
            "moved": result.moved,
            "stopped": result.stopped,
            "key": key.label,
        }
        logger.info("jobs were redriven", extra={"fields": fields})


def _shown_jobs(result: Redriven) -> list[response_body.DiffRecord]:
    return [
        response_body.DiffRecord(
            seq=record.seq,
            ts=record.ts,
            node=UNSET if record.node is None else record.node,
            tag=UNSET if record.tag is None else record.tag,
            data=Raw(record.data),
            meta=UNSET if record.meta is None else Raw(record.meta),
        )
        for record in result.jobs
    ]


def _after_seq(cursor: str | None) -> int:
    after = after_of(cursor)
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit()):
        raise InvalidRequest("the cursor does not come from this list; leave it out for the first page")
    return int(after[:20])
