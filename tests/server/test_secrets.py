"""Keys: no output of the server contains them; starts with wrong keys; the cost of guesses.

`test_auth.py` checks that a wrong key takes the same work as a right one.
"""

from __future__ import annotations

import io
import logging
import os
import select
import stat
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import monotonic

import pytest

from tests.server.raw import HOST, RawConnection, append, get, post
from tests.server.running import Running, running
from topics.server.auth import KeyRing
from topics.server.http.exchange import Exchange
from topics.server.http.peers import DELAY_MS_MAX, FAILURES_FREE
from topics.server.http.routes import Endpoint
from topics.server.logs import configure_logging
from topics.server.settings_schema import KeyList, LogFormat
from topics.testing.server_process import ServerProcess

# Keys of the server, guesses of strangers, and secrets that clients send. None of them may appear in any output.
KEYS = ("planted-root-0123456789", "planted-reader-9876543210", "short7")
KEY_LIST = f"{KEYS[0]},{KEYS[1]}:read:mine.,{KEYS[2]}:write"
TRIED = "planted-guess-5555555555"
SENT = "planted-payload-7777777777"
ROOT = b"Authorization: Bearer " + KEYS[0].encode()


_numbers = count(1)


def expect_no_secret(said: str | bytes, *, where: str) -> None:
    text = said if isinstance(said, str) else said.decode("utf-8", "replace")
    for secret in (*KEYS, TRIED, SENT):
        assert secret not in text, f"{secret} stands in {where}"


# No key in any output.


@pytest.fixture
def own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def requests_with_secrets() -> list[bytes]:
    """Requests, good and bad, with secrets in every possible place."""
    sent = SENT.encode()
    guess = b"Authorization: Bearer " + TRIED.encode()
    reader = b"Authorization: Bearer " + KEYS[1].encode()
    cookie = b"Cookie: session=" + sent
    token = b"?token=" + KEYS[0].encode()
    return [
        append("t", b'"%b"' % sent, ROOT, b"Idempotency-Key: k" + sent, cookie),
        append("t", b'"%b' % sent, ROOT),
        append("t", b'"%b"' % sent, guess),
        append("t", b'"%b"' % sent, reader),
        append("t", b'"%b"' % sent, b"Authorization: Basic " + KEYS[0].encode()),
        append("t", b'"%b"' % sent, b"Authorization: " + KEYS[0].encode()),
        post(b"/v0/topics/t", b'{"records":"%b"}' % sent, ROOT),
        post(b"/v0/topics/t/delete", b'{"match":["%b","Eq","%b"]}' % (sent, sent), ROOT),
        get(b"/v0/topics" + token),
        get(b"/v0/metrics" + token, guess),
        get(b"/v0/topics?cursor=" + sent, ROOT),
        get(b"/nothing" + token, ROOT),
        b"PATCH" + get(b"/v0/health" + token, ROOT)[3:],
        post(b"/v0/topics/t", b"", ROOT, b"Expect: 100-continue").replace(b"h: 0", b"h: 999999999"),
        b"GET /v0/topics" + token + b" HTTP/1.1\r\n" + ROOT + b"\r\n\r\n",
        b"GET http://" + KEYS[0].encode() + b"@localhost/ HTTP/1.1\r\n" + HOST + ROOT + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + ROOT + b"\nX: y\r\n\r\n",
        KEYS[0].encode() + b" / HTTP/1.1\r\n\r\n",
        get(b"/healthz" + token, ROOT, cookie),
        get(b"/v0/metrics", ROOT),
        get(b"/v0/metrics", ROOT, b"Accept: application/json"),
        get(b"/v0/openapi.json", ROOT),
        get(b"/v0/health"),
        get(b"/v0/ready"),
    ]


def answers_to(host: str, port: int, requests: list[bytes]) -> Iterator[bytes]:
    """The whole answer to each request."""
    for request in requests:
        with RawConnection.to(host, port) as connection:
            connection.send(request)
            connection.end()
            yield connection.rest()


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.usefixtures("own_logging")
def test_no_key_is_in_an_answer_a_log_line_or_a_traceback(tmp_path: Path, log_format: LogFormat) -> None:
    stream = io.StringIO()
    configure_logging("debug", log_format, secrets=KeyList(KEY_LIST).secrets(), stream=stream)

    def broken(exchange: Exchange) -> None:
        raise RuntimeError(
            f"a bug that shows {exchange.headers[b'authorization']!r} and {KEYS[2]} and {exchange.query!r}"
        )

    with running(tmp_path, keys=KEY_LIST) as server:
        server.server.app.routes.add("GET", "/healthz", Endpoint("health", broken))
        answers = list(answers_to(server.host, server.port, requests_with_secrets()))
        for answer in answers:
            assert answer.startswith(b"HTTP/1.1 ")
            expect_no_secret(answer, where="an answer")
        assert sum(b"500 Internal Server Error" in answer for answer in answers) == 1
    log = stream.getvalue()
    assert "a bug that shows" in log
    assert "Traceback" in log
    assert "***" in log
    expect_no_secret(log, where="the log")


def test_no_key_is_in_what_objects_say_about_themselves(tmp_path: Path) -> None:
    with running(tmp_path, keys=KEY_LIST) as server:
        app = server.server.app
        ring = KeyRing.parse(KEY_LIST)
        key = ring.find(KEYS[0].encode())
        assert key is not None
        exchange = Exchange(app, RawPeer(), b"GET", b"/", b"", {b"authorization": KEYS[0].encode()})
        for thing in (
            app,
            app.settings,
            app.settings.api_keys,
            ring,
            key,
            key.label,
            exchange,
            server.server,
            app._keys,
        ):
            expect_no_secret(f"{thing!r} {thing!s} {thing}", where=f"a {type(thing).__name__}")
        for thing in (app, app.settings, ring, app._keys, server.server):
            fields = {name: getattr(thing, name) for name in [*getattr(thing, "__slots__", ()), *vars_of(thing)]}
            expect_no_secret(repr(fields), where=f"the fields of a {type(thing).__name__}")


class RawPeer:
    peer_host = "127.0.0.1"

    def send(self, exchange: Exchange, response: object) -> None:
        raise AssertionError("nothing is sent here")


def vars_of(thing: object) -> list[str]:
    return list(getattr(thing, "__dict__", ()))


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_key_is_in_what_a_server_process_prints(tmp_path: Path, log_format: str) -> None:
    """Keys from the environment, from a file, and debug lines."""
    key_file = tmp_path / "keys"
    key_file.write_text("\n".join(KEY_LIST.split(",")))
    environ = {"TOPICS_API_KEYS": KEY_LIST} if log_format == "text" else {"TOPICS_API_KEYS_FILE": str(key_file)}
    with ServerProcess(environ=environ, log_level="debug", log_format=log_format) as server:
        answers = list(answers_to(server.host, server.port, requests_with_secrets()))
        assert any(b" 401 " in answer for answer in answers)
        assert any(b" 200 " in answer for answer in answers)
        server.stop()
        assert "(3 keys)" in server.output
        expect_no_secret(server.output, where="the output")


# Keys in URLs.


@pytest.mark.parametrize(
    "path",
    [
        b"/v0/topics?token=%b",
        b"/v0/topics/t?token=%b",
        b"/v0/metrics?token=%b",
        b"/v0/openapi.json?token=%b",
        b"/v0/topics/t?a=b&token=%b&token=%b",
        b"/v0/topics?access_token=%b",
        b"/v0/topics?key=%b",
        b"/v0/topics?%%74oken=%b",
        b"/nothing?token=%b",
        b"/v0/ws?token=%b",
    ],
)
def test_a_key_in_a_url_opens_nothing(locked: Running, path: bytes) -> None:
    target = path.replace(b"%%", b"%").replace(b"%b", KEYS[0].encode())
    # From its own address, because the failures of one address are slowed down.
    with RawConnection.to(locked.host, locked.port, f"127.0.3.{next(_numbers)}") as connection:
        for request in (get(target), post(target, b"{}"), b"DELETE" + get(target)[3:]):
            connection.send(request)
            assert connection.answer().refusal == (401, "unauthorized")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("locked"), keys=KEY_LIST) as server:
        yield server


# Starts that are refused.


def serve_fails(tmp_path: Path, *flags: str, **environ: str) -> str:
    """Runs `topics serve`, which must exit with status 1. Returns its stderr."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    done = subprocess.run(
        [sys.executable, "-m", "topics.cli.entry", "serve", "--port=0", *flags],
        cwd=tmp_path,
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert not list(tmp_path.iterdir())
    return done.stderr


@pytest.mark.parametrize("scopes", ["raed", "+"])
def test_a_malformed_scope_refuses_the_start(tmp_path: Path, scopes: str) -> None:
    """The scope would grant something else than was meant."""
    stderr = serve_fails(tmp_path, TOPICS_API_KEYS=f"{KEYS[0]},{KEYS[1]}:{scopes}")
    assert stderr.startswith("topics: TOPICS_API_KEYS: entry ")
    expect_no_secret(stderr, where="the refusal")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]:4000"])
def test_a_server_without_keys_listens_for_this_machine_only(tmp_path: Path, host: str) -> None:
    stderr = serve_fails(tmp_path, f"--host={host}")
    assert "can be reached by other machines, and there are no API keys: set TOPICS_API_KEYS" in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("settings", [{"api_keys": KEYS[0]}, {"allow_insecure_no_auth": True}])
def test_a_server_that_others_reach_has_keys_or_the_word_of_its_operator(settings: dict[str, object]) -> None:
    with ServerProcess(host="0.0.0.0", **settings) as server:
        assert server.host == "0.0.0.0"
        if "api_keys" not in settings:
            assert "every caller has full access" in server.output


# Guesses.


def test_guessing_takes_its_time_and_a_good_key_does_not(tmp_path: Path) -> None:
    """From the same address, in every form."""
    guess = b"Authorization: Bearer " + TRIED.encode()
    large = post(b"/v0/topics/t", b"", guess).replace(b"Content-Length: 0", b"Content-Length: 9999999")
    forms = [
        get(b"/v0/topics", guess),
        post(b"/v0/topics/t", b"{}", guess, b"Expect: 100-continue"),
        large,
        post(b"/v0/topics/t", b"", guess).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    ]
    with running(tmp_path, keys=KEY_LIST) as server:
        with RawConnection(server) as guesser:
            guesser.send(forms[0] * FAILURES_FREE)
            assert {answer.status for answer in guesser.answers(FAILURES_FREE)} == {401}
        guessers = [RawConnection(server) for _ in range(5 * len(forms))]
        sent_s = monotonic()
        for number, guesser in enumerate(guessers):
            guesser.send(forms[number % len(forms)])
        with RawConnection(server) as owner:
            owner.send(get(b"/v0/topics", ROOT))
            assert owner.answer().status == 200
            # The last guesses of each form wait for a second, unless this process was kept from its work for so long.
            last = [guesser.socket for guesser in guessers[-len(forms) :]]
            assert select.select(last, [], [], 0)[0] == [] or monotonic() - sent_s > DELAY_MS_MAX / 1010
            for guesser in guessers:
                assert guesser.answer().refusal == (401, "unauthorized")
                guesser.socket.close()
            owner.send(append("t", b"1", ROOT))
            assert owner.answer().status == 201
        assert server.server.app.counters.auth_failures == FAILURES_FREE + len(guessers)


# Files of the server.


def test_what_a_server_writes_is_for_its_user_only(tmp_path: Path) -> None:
    """Also if the system's default lets other users in."""
    before = os.umask(0)
    try:
        with ServerProcess(tmp_path / "made" / "here", wal_shards=2) as server:
            with RawConnection.to(server.host, server.port) as connection:
                connection.send(append("t") * 10)
                connection.answers(10)
            server.stop()
    finally:
        os.umask(before)
    made = [tmp_path / "made", *(tmp_path / "made").rglob("*")]
    assert len(made) > 5
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_data_directory_that_others_can_enter_is_warned_of(tmp_path: Path) -> None:
    """It may be meant, so the server starts."""
    tmp_path.chmod(0o755)
    with ServerProcess(tmp_path) as server:
        server.stop()
        assert "others can reach into the data directory" in server.output
