"""Endpoints of consumer groups: named cursors of a topic, which the server keeps for readers."""

from __future__ import annotations

from functools import partial
from typing import Final

from topics.engine.groups import Groups
from topics.errors import InvalidRequest, TopicsError
from topics.protocol import response_body
from topics.protocol.body_decoder import COMMIT_DECODER, GROUP_DECODER
from topics.protocol.request_body import CommitBody, GroupBody
from topics.results import GroupChanged, Start
from topics.server.app import Application
from topics.server.auth import ADMIN, DELETE, READ
from topics.server.http.exchange import Exchange
from topics.server.http.routes import Body, Endpoint

_LIST: Final = "/v0/topics/{topic}/groups"
_ONE: Final = _LIST + "/{group}"


class GroupsApi:
    """A commit needs only the scope `read`: it records what was read, and changes nothing for other readers."""

    def __init__(self, app: Application) -> None:
        self._app = app
        add = app.routes.add
        add("GET", _LIST, Endpoint("list_groups", self.list_all, READ))
        add("PUT", _ONE, Endpoint("put_group", self.put, ADMIN, Body.OPTIONAL))
        add("GET", _ONE, Endpoint("get_group", self.state, READ))
        add("DELETE", _ONE, Endpoint("delete_group", self.delete, DELETE))
        add("POST", f"{_ONE}/commit", Endpoint("commit_group", self.commit, READ, Body.REQUIRED))

    @property
    def _groups(self) -> Groups:
        return self._app.open_engine().engine.groups

    def list_all(self, exchange: Exchange) -> None:
        topic = self._app.open_engine().engine.topic(exchange.name)
        entries = [
            response_body.GroupEntry(
                group=cursor.group, seq=cursor.seq, lag=cursor.lag, last_commit_ts=cursor.last_commit_ts
            )
            for cursor in self._groups.cursors(exchange.name)
        ]
        exchange.answer(
            response_body.GroupList(
                topic=exchange.name, head_seq=topic.head_seq, groups=entries, performance=exchange.performance()
            )
        )

    def state(self, exchange: Exchange) -> None:
        cursor = self._groups.cursor(exchange.name, exchange.inner_name)
        exchange.answer(
            response_body.GroupState(topic=exchange.name, **cursor._asdict(), performance=exchange.performance())
        )

    def put(self, exchange: Exchange) -> None:
        body: GroupBody = GROUP_DECODER.decode(exchange.body) if exchange.body else GroupBody()
        if body.seq is not None and body.from_ is not None:
            raise InvalidRequest("the body has both seq and from: send one of them")
        position: int | Start | None = body.from_ if body.seq is None else body.seq
        self._groups.put(exchange.name, exchange.inner_name, position, partial(self._put_done, exchange))

    def _put_done(self, exchange: Exchange, result: GroupChanged | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        body = response_body.PutGroup(
            topic=exchange.name,
            **result.cursor._asdict(),
            created=result.created,
            performance=exchange.performance(),
        )
        exchange.answer(body, 201 if result.created else 200)

    def commit(self, exchange: Exchange) -> None:
        body: CommitBody = COMMIT_DECODER.decode(exchange.body)
        self._groups.commit(
            exchange.name, exchange.inner_name, body.seq, partial(self._committed, exchange), rewind=body.rewind
        )

    def _committed(self, exchange: Exchange, result: GroupChanged | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        exchange.answer(
            response_body.Committed(
                topic=exchange.name,
                **result.cursor._asdict(),
                moved=result.moved,
                performance=exchange.performance(),
            )
        )

    def delete(self, exchange: Exchange) -> None:
        self._groups.delete(exchange.name, exchange.inner_name, partial(self._deleted, exchange))

    def _deleted(self, exchange: Exchange, result: bool | TopicsError) -> None:  # noqa: FBT001 - called by the engine.
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        exchange.answer(
            response_body.GroupDeleted(
                topic=exchange.name,
                group=exchange.inner_name,
                deleted=result,
                performance=exchange.performance(),
            )
        )
