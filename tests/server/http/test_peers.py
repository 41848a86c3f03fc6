"""Delays after bad keys, and the allowed host names."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.server.auth import KeyRing
from topics.server.http.peers import (
    DELAY_MS_MAX,
    DELAY_STEP_MS,
    FAILURE_FORGOTTEN_MS,
    FAILURES_FREE,
    PEERS_MAX,
    FailureBackoff,
    HostGuard,
)

NOW_MS = 5_000_000


def fail(backoff: FailureBackoff, times: int, address: str = "192.0.2.7", now_ms: int = NOW_MS) -> list[int]:
    return [backoff.note_failure(address, now_ms) for _ in range(times)]


def test_a_few_failures_are_answered_at_once() -> None:
    assert fail(FailureBackoff(), FAILURES_FREE) == [0] * FAILURES_FREE


def test_further_failures_wait_longer_each_time_up_to_a_second() -> None:
    backoff = FailureBackoff()
    fail(backoff, FAILURES_FREE)
    steps = DELAY_MS_MAX // DELAY_STEP_MS
    assert fail(backoff, steps) == [DELAY_STEP_MS * step for step in range(1, steps + 1)]
    assert fail(backoff, 1000) == [DELAY_MS_MAX] * 1000


def test_failures_are_forgotten_one_by_one() -> None:
    backoff = FailureBackoff()
    fail(backoff, FAILURES_FREE)
    now_ms = NOW_MS + 2 * FAILURE_FORGOTTEN_MS
    assert fail(backoff, 3, now_ms=now_ms) == [0, 0, DELAY_STEP_MS]


def test_a_peer_that_stops_is_forgotten_however_long_it_went_on() -> None:
    backoff = FailureBackoff()
    fail(backoff, 10_000)
    assert fail(backoff, FAILURES_FREE, now_ms=NOW_MS + 90_000) == [0] * FAILURES_FREE


def test_failures_at_a_slow_pace_are_never_delayed() -> None:
    backoff = FailureBackoff()
    delays = [backoff.note_failure("192.0.2.7", NOW_MS + FAILURE_FORGOTTEN_MS * count) for count in range(500)]
    assert set(delays) == {0}


def test_peers_do_not_wait_for_each_other() -> None:
    backoff = FailureBackoff()
    assert fail(backoff, 100)[-1] == DELAY_MS_MAX
    assert fail(backoff, 1, "192.0.2.8") == [0]


def test_a_good_key_passes_while_its_address_is_loud() -> None:
    """The key is looked up first, and only a failure is counted."""
    ring, backoff = KeyRing.parse("good"), FailureBackoff()
    for number in range(100):
        if ring.find(b"guess-%d" % number) is None:
            backoff.note_failure("192.0.2.7", NOW_MS)
    assert ring.find(b"good") is not None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "/run/topics.sock", True),
    ],
)
def test_ipv6_peers_are_counted_by_their_network(one: str, other: str, same: bool) -> None:
    backoff = FailureBackoff()
    fail(backoff, 100, one)
    assert (backoff.note_failure(other, NOW_MS) > 0) is same


def test_the_table_is_bounded_and_keeps_who_failed_last() -> None:
    backoff = FailureBackoff()
    first = ipaddress.ip_address("10.0.0.0")
    loud = "192.0.2.7"
    fail(backoff, 100, loud)
    for number in range(PEERS_MAX - 1):
        backoff.note_failure(str(first + number), NOW_MS)
    assert fail(backoff, 1, loud) == [DELAY_MS_MAX], "failing again, it is the newest"
    backoff.note_failure("198.51.100.1", NOW_MS)
    assert len(backoff) == PEERS_MAX
    assert fail(backoff, 1, loud) == [DELAY_MS_MAX]
    for number in range(PEERS_MAX):
        backoff.note_failure(str(first + number), NOW_MS)
    assert len(backoff) == PEERS_MAX
    assert fail(backoff, 1, loud) == [0], "forgotten for those who came later"


@given(attempts=st.lists(st.tuples(st.sampled_from(["192.0.2.1", "::1"]), st.integers(0, 10_000)), max_size=100))
def test_a_delay_is_never_longer_than_the_bound_and_never_comes_early(attempts: list[tuple[str, int]]) -> None:
    backoff = FailureBackoff()
    now_ms = NOW_MS
    failures: dict[str, int] = {}
    for address, pause_ms in attempts:
        now_ms += pause_ms
        failures[address] = failures.get(address, 0) + 1
        delay_ms = backoff.note_failure(address, now_ms)
        assert 0 <= delay_ms <= DELAY_MS_MAX
        assert delay_ms == 0 or failures[address] > FAILURES_FREE


# Host names.


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"localhost:4000",
        b"localhost:",
        b"LocalHost:80",
        b"127.0.0.1",
        b"127.0.0.1:4000",
        b"127.8.9.10:1",
        b"[::1]",
        b"[::1]:4000",
        b"[0:0:0:0:0:0:0:1]:4000",
        b"[::ffff:127.0.0.1]:4000",
        b"topics.internal",
        b"TOPICS.internal:8443",
    ],
)
def test_names_of_this_machine_pass_at_any_port(host: bytes) -> None:
    guard = HostGuard("topics.internal:4000")
    assert guard.allows(host)
    assert guard.allows(host), "the same when it is remembered"


@pytest.mark.parametrize(
    "host",
    [
        b"",
        b":4000",
        b"evil.example",
        b"evil.example:4000",
        b"localhost.evil.example",
        b"evil.example#localhost",
        b"localhost@evil.example",
        b"evil@localhost",
        b"localhost.",
        b"x.localhost",
        b" localhost",
        b"localhost:4000:4000",
        b"localhost:http",
        b"localhost:-1",
        b"localhost/",
        b"localhost\x00",
        b"localhost\n",
        b"localhost,evil.example",
        b"127.0.0.1.evil.example",
        b"127.1",
        b"2130706433",
        b"0x7f.0.0.1",
        b"0177.0.0.1",
        b"0.0.0.0",
        b"10.0.0.1",
        b"::1",
        b"[::1",
        b"[::]",
        b"[::1]x",
        b"[::1%25lo]",
        b"[localhost]",
        b"[127.0.0.1]",
        "löcalhost".encode(),
        "\u217cocalhost".encode(),
        b"\xff",
        b"a" * 100_000,
    ],
)
def test_any_other_name_is_refused(host: bytes) -> None:
    guard = HostGuard("127.0.0.1")
    assert not guard.allows(host)
    assert not guard.allows(host), "the same when it is asked again"


@pytest.mark.parametrize("configured", ["::1", "[::1]", "[::1]:4000"])
def test_the_configured_host_may_be_an_ipv6_address(configured: str) -> None:
    guard = HostGuard(configured)
    assert guard.allows(b"[::1]:4000")
    assert guard.allows(b"localhost")
    assert not guard.allows(b"[::2]")


def test_what_passed_is_remembered_in_a_bounded_set() -> None:
    guard = HostGuard("127.0.0.1")
    for port in range(1000):
        assert guard.allows(b"localhost:%d" % port)
        assert len(guard._allowed) <= 64
    assert not guard.allows(b"evil.example")


@given(host=st.binary(max_size=40))
def test_any_bytes_are_allowed_or_not(host: bytes) -> None:
    assert not HostGuard("topics.internal").allows(b"evil.example" + host)
