"""Endpoints of consumer groups: named cursors of a topic. Beyond the first contract; who knows of none sees none."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from topics.engine.groups import Changed, Cursor, Groups, Start
from topics.errors import InvalidRequest, TopicsError
from topics.protocol.request_body import COMMIT_DECODER, GROUP_DECODER, CommitBody, GroupBody
from topics.server.app import Application
from topics.server.auth import ADMIN, DELETE, READ
from topics.server.http.exchange import Exchange, Response
from topics.server.http.routes import Body, Endpoint

_encode: Final = msgspec.json.Encoder().encode

_LIST: Final = "/v0/topics/{topic}/groups"
_ONE: Final = _LIST + "/{group}"


class GroupsApi:
    """A commit needs the scope of a read: it says what was read, and changes nothing for anybody else."""

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
            {
                "group": cursor.group,
                "seq": cursor.seq,
                "lag": cursor.lag,
                "last_commit_ts": cursor.last_commit_ts,
            }
            for cursor in self._groups.cursors(exchange.name)
        ]
        _reply(exchange, {"topic": exchange.name, "head_seq": topic.head_seq, "groups": entries})

    def state(self, exchange: Exchange) -> None:
        cursor = self._groups.cursor(exchange.name, exchange.inner_name)
        _reply(exchange, _cursor_members(exchange, cursor))

    def put(self, exchange: Exchange) -> None:
        body: GroupBody = GROUP_DECODER.decode(exchange.body) if exchange.body else GroupBody()
        if body.seq is not None and body.from_ is not None:
            raise InvalidRequest("say where the group is to stand by seq or by from, not by both")
        position: int | Start | None = body.from_ if body.seq is None else body.seq
        self._groups.put(exchange.name, exchange.inner_name, position, partial(self._put_done, exchange))

    def _put_done(self, exchange: Exchange, result: Changed | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        members = _cursor_members(exchange, result.cursor) | {"created": result.created}
        _reply(exchange, members, 201 if result.created else 200)

    def commit(self, exchange: Exchange) -> None:
        body: CommitBody = COMMIT_DECODER.decode(exchange.body)
        self._groups.commit(
            exchange.name, exchange.inner_name, body.seq, partial(self._committed, exchange), rewind=body.rewind
        )

    def _committed(self, exchange: Exchange, result: Changed | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        _reply(exchange, _cursor_members(exchange, result.cursor) | {"moved": result.moved})

    def delete(self, exchange: Exchange) -> None:
        self._groups.delete(exchange.name, exchange.inner_name, partial(self._deleted, exchange))

    def _deleted(self, exchange: Exchange, result: bool | TopicsError) -> None:  # noqa: FBT001 - called by the engine.
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        _reply(exchange, {"topic": exchange.name, "group": exchange.inner_name, "deleted": result})


def _cursor_members(exchange: Exchange, cursor: Cursor) -> dict[str, Any]:
    return {"topic": exchange.name} | cursor._asdict()


def _reply(exchange: Exchange, members: dict[str, Any], status: int = 200) -> None:
    members["performance"] = {"server_total_ms": round(exchange.elapsed_ms(), 3)}
    exchange.reply(Response(status, _encode(members)))
