"""Loads that last: topics at their caps with deletes and checkpoints, and one writer at full speed that is killed."""

import json
import socket
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

from topics.bench.http import CONNECTIONS, write_body
from topics.bench.load_client import post
from topics.bench.processes import Process, ProcessFailed, running_floor_server, start_server
from topics.bench.report import Row, not_measured
from topics.bench.setting import Setting
from topics.bench.wrk import Load, Post, missing_tool, run_wrk

_TOPICS: Final = 3
_CAP_RECORDS: Final = 200_000
_BATCH: Final = 20
_TAGS: Final = 1000
# One request in so many is a delete.
_DELETE_EVERY: Final = 50
_LARGE_BATCH: Final = 1000
_RECEIVE_BYTES: Final = 64 * 1024


# Topics at their caps.


def steady_deletes(setting: Setting) -> list[Row]:
    """16 connections write batches of tagged records into three full topics. Every 50th request deletes one tag."""
    what = "steady: capped topics, every 50th request a delete"
    deletes = [
        Post(f"/v0/topics/t{topic}/delete", b'{"match":["tag","Eq","tag-%d"]}' % tag)
        for tag in range(_TAGS)
        for topic in [tag % _TOPICS]
    ]
    writes = _tagged_writes()
    is_delete = f"n % {_DELETE_EVERY} == {_DELETE_EVERY - 1}"
    delete = f"{len(writes)} + math.floor(n / {_DELETE_EVERY}) % {_TAGS}"
    order = f"({is_delete}) and ({delete}) or n % {len(writes)}"
    return _steady(setting, what, [*writes, *deletes], order, floor=4.0, p99_ms_max=25)


def steady_appends(setting: Setting) -> list[Row]:
    """The same load without deletes. Checkpoints run beside it."""
    writes = _tagged_writes()
    return _steady(setting, "steady: capped topics, appends only", writes, f"n % {len(writes)}", p99_ms_max=20)


def _tagged_writes() -> list[Post]:
    """Each of the tags is in one batch. The number of batches and the number of topics have no common divisor, so that
    each tag comes to each topic: the requests repeat the batches for all topics.
    """
    batches = [
        write_body(_BATCH, tags=[f"tag-{tag}" for tag in range(first, first + _BATCH)])
        for first in range(0, _TAGS, _BATCH)
    ]
    return [
        Post(f"/v0/topics/t{number % _TOPICS}", batches[number % len(batches)])
        for number in range(len(batches) * _TOPICS)
    ]


def _steady(
    setting: Setting, what: str, requests: list[Post], order: str, *, p99_ms_max: float, floor: float | None = None
) -> list[Row]:
    if (missing := missing_tool()) is not None:
        return [not_measured(what, missing)]
    warm_s, seconds = setting.seconds(60 if setting.is_full else 5), setting.seconds(30 if setting.is_full else 10)

    def load(server: Process, seconds: float) -> Load:
        return run_wrk(setting.directory, server, requests, connections=CONNECTIONS, seconds=seconds, order=order)

    with setting.server() as server:
        _fill_to_caps(server, setting)
    # A stop puts all records into segments, which is where most of them are in a steady state.
    with setting.server() as server:
        load(server, warm_s)
        answer = server.raw_answer("POST", requests[0].path, requests[0].body)
        measured = load(server, seconds)
    with running_floor_server(setting.directory, answer) as bare:
        bare_us = load(bare, setting.seconds(1)).cpu.total_us
    return [
        Row(
            what,
            measured.rate / 1e3,
            "K requests/s",
            floor=floor,
            cpu=measured.cpu,
            cpu_bare_us=bare_us,
            client_share=measured.client_share,
            note=f"{measured.refused} requests refused" if measured.refused else "",
        ),
        Row(f"{what}, p50", measured.p50_ms, "ms"),
        Row(f"{what}, p99", measured.p99_ms, "ms", ceiling=p99_ms_max),
    ]


def _fill_to_caps(server: Process, setting: Setting) -> None:
    body = write_body(_LARGE_BATCH, tags=[f"tag-{tag}" for tag in range(_LARGE_BATCH)])
    cap_records = max(_LARGE_BATCH, setting.count(_CAP_RECORDS))
    for topic in range(_TOPICS):
        server.request("PUT", f"/v0/topics/t{topic}", b'{"cap_records":%d}' % cap_records)
        with Writer(server, f"/v0/topics/t{topic}?return_seqs=false", body) as writer:
            for _ in range(cap_records // _LARGE_BATCH):
                writer.write()


# One writer at full speed.


class Writer:
    """One connection that sends the same write again and again. It waits and repeats a write that was refused."""

    def __init__(self, server: Process, path: str, body: bytes) -> None:
        self._server = server
        self._request = post(path, body)
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.refused = 0
        self.held_back_s = 0.0

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def write(self) -> None:
        while True:
            status, body = self._exchange()
            if 200 <= status < 300:
                return
            if status != 429:
                raise ProcessFailed(f"a write was answered {status}: {body.decode(errors='replace')}")
            self.refused += 1
            detail = json.loads(body).get("detail") or {}
            wait_s = detail.get("retry_after_ms", 1000) / 1000
            self.held_back_s += wait_s
            sleep(wait_s)

    def _exchange(self) -> tuple[int, bytes]:
        try:
            self._socket.sendall(self._request)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += self._receive()
            head, _, body = answer.partition(b"\r\n\r\n")
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            while len(body) < length:
                body += self._receive()
        except OSError as error:
            self._server.check_running(is_in_doubt=True)
            raise ProcessFailed(f"a connection broke: {error}") from error
        return int(head[9:12]), body

    def _receive(self) -> bytes:
        received = self._socket.recv(_RECEIVE_BYTES)
        if not received:
            raise ConnectionResetError("the server closed a connection")
        return received


def sustained(setting: Setting) -> list[Row]:
    """One writer of large batches. Then the server is killed and started again."""
    records = max(_LARGE_BATCH, setting.count(10_000_000 if setting.is_full else 2_000_000))
    batches = records // _LARGE_BATCH
    server = start_server(setting.directory, python_path=setting.python_path)
    try:
        before, began_s = server.cpu_time(), perf_counter()
        with Writer(server, "/v0/topics/a?return_seqs=false", write_body(_LARGE_BATCH)) as writer:
            for _ in range(batches):
                writer.write()
            took_s = perf_counter() - began_s
            cpu = (server.cpu_time() - before).each(batches)
    finally:
        server.kill()
    backlog_bytes = sum(path.stat().st_size for path in Path(setting.directory, "data", "wal").rglob("*.log"))
    began_s = perf_counter()
    server = start_server(setting.directory, python_path=setting.python_path)
    ready_s = perf_counter() - began_s
    try:
        count = server.request("GET", "/v0/topics/a")["count"]
    finally:
        server.stop()
    if count != batches * _LARGE_BATCH:
        raise ProcessFailed(f"{count} records were there after the kill, {batches * _LARGE_BATCH} had been answered")
    what = f"sustained: {batches * _LARGE_BATCH} records by one writer of {_LARGE_BATCH}"
    return [
        Row(what, batches * _LARGE_BATCH / took_s / 1e3, "K records/s", floor=300, cpu=cpu),
        Row(
            f"{what}, refused",
            writer.refused,
            "writes",
            ceiling=0,
            note=f"held back {writer.held_back_s:.1f} of {took_s:.1f} s" if writer.refused else "",
        ),
        Row(f"{what}, log at the kill", backlog_bytes / 2**20, "MiB"),
        Row(f"{what}, ready after kill -9", ready_s, "s", ceiling=1.5),
    ]
