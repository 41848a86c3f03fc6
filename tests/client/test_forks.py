"""A process that was forked from one with open connections: each process has its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import topics
from tests.browser.relay import Relay
from tests.client.faulty_proxy import Asked, faulty_proxy
from tests.embedded.python_process import run_code
from tests.server.running import Running, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("data")) as running_server:
        with topics.Client(running_server.url) as client:
            client.create("parent")
            client.create("child")
        yield running_server


# Both print nothing when each process got its own answers.
BLOCKING = """
import os, sys, topics

def ask(name):
    for _ in range(20):
        assert client.state(name).topic == name

client = topics.Client(sys.argv[1], retries=0, timeout_s=20)
client.state("parent")  # Its connection is kept.
child = os.fork()
ask("parent" if child else "child")
if not child:
    client.close()
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
ask("parent")
"""

ASYNCIO = """
import asyncio, os, sys, topics

async def ask(name):
    for _ in range(20):
        assert (await client.state(name)).topic == name

async def be_child():
    await ask("child")
    await client.close()

client = topics.AsyncClient(sys.argv[1], retries=0, timeout_s=20)
loop = asyncio.new_event_loop()
loop.run_until_complete(client.state("parent"))  # Its connection is kept.
child = os.fork()
if not child:
    asyncio.run(be_child())
    del client  # asyncio closes a stream that has no reference any more.
    sys.exit()
loop.run_until_complete(ask("parent"))
assert os.waitpid(child, 0)[1] == 0
loop.run_until_complete(ask("parent"))
loop.run_until_complete(client.close())
loop.close()
"""


def output_of(code: str, *arguments: object) -> str:
    done = run_code(code, *arguments)
    # asyncio says on stderr which tasks a fork does not finish.
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("code", [BLOCKING, ASYNCIO], ids=["client", "async client"])
def test_a_fork_and_its_parent_use_connections_of_their_own(server: Running, code: str) -> None:
    both = threading.Barrier(2)

    def together(asked: Asked) -> None:
        """The first answers after the fork wait until both processes have asked."""
        number = len([one for one in list(proxy.asked) if one.target == asked.target])
        if number == (2 if "parent" in asked.target else 1):
            both.wait(30)

    with faulty_proxy(server.url) as proxy:
        proxy.route = together
        assert output_of(code, proxy.url) == ""
    assert {(asked.target, asked.connection) for asked in proxy.asked} == {
        ("/v0/topics/parent", 1),
        ("/v0/topics/child", 2),
    }
    assert len(proxy.asked) == 61


BLOCKING_TAIL = """
import os, sys, topics

client = topics.Client(sys.argv[1])
client.append("t", [1])
tail = client.tail("t")
first = next(tail).seq
child = os.fork()
if not child:
    CHILD
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
client.append("t", [2])
print(first, next(tail).seq)
tail.close()
client.close()
"""

ASYNCIO_TAIL = """
import asyncio, os, sys, topics

client = topics.AsyncClient(sys.argv[1])
loop = asyncio.new_event_loop()
loop.run_until_complete(client.append("t", [1]))
tail = client.tail("t")
first = loop.run_until_complete(anext(tail)).seq
child = os.fork()
if not child:
    CHILD
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
loop.run_until_complete(client.append("t", [2]))
print(first, loop.run_until_complete(anext(tail)).seq)
loop.run_until_complete(tail.aclose())
loop.run_until_complete(client.close())
loop.close()
"""


@pytest.mark.parametrize(
    ("code", "child"),
    [
        (BLOCKING_TAIL, "pass"),
        (BLOCKING_TAIL, "client.close()"),
        (BLOCKING_TAIL, "tail.close()"),
        (BLOCKING_TAIL, "del tail, client"),
        (ASYNCIO_TAIL, "pass"),
        (ASYNCIO_TAIL, "asyncio.run(client.close())"),
        (ASYNCIO_TAIL, "del tail, client"),
    ],
)
def test_a_fork_that_ends_leaves_the_connections_of_its_parent_open(tmp_path: Path, code: str, child: str) -> None:
    with running(tmp_path) as server, Relay(server) as relay:
        assert output_of(code.replace("CHILD", child), relay.url) == "1 2\n"
        # A connection that broke would have been made again.
        assert relay.sent.count(b"POST /v0/watch") == 1
        assert relay.connection_count == 2


def test_a_fork_goes_on_with_a_tail_on_a_connection_of_its_own(tmp_path: Path) -> None:
    child = 'client.append("t", [2]); assert [next(tail).seq, next(tail).seq] == [2, 3]'
    code = BLOCKING_TAIL.replace("assert os.waitpid(child, 0)[1] == 0\n", "").replace("CHILD", child)
    code = code.replace('client.append("t", [2])\nprint', 'client.append("t", [3])\nprint')
    code += "assert os.waitpid(child, 0)[1] == 0\n"
    with running(tmp_path) as server:
        assert output_of(code, server.url) == "1 2\n"
