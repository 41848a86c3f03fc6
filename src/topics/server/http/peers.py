"""Checks of a caller before its request is read: delays after bad keys, and the allowed host names.

Loop thread only. Time is passed in.
"""

import re
from collections import OrderedDict
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

# A client may fail this often at once, and then once per `FAILURE_FORGOTTEN_MS`, without a delay.
FAILURES_FREE: Final = 20
FAILURE_FORGOTTEN_MS: Final = 3000
# Each failure beyond that is answered later than the previous one.
DELAY_STEP_MS: Final = 100
DELAY_MS_MAX: Final = 1000
PEERS_MAX: Final = 10_000
_FREE_MS: Final = FAILURES_FREE * FAILURE_FORGOTTEN_MS
_DEBT_MS_MAX: Final = _FREE_MS + DELAY_MS_MAX // DELAY_STEP_MS * FAILURE_FORGOTTEN_MS

_HOST_HEADER_BYTES_MAX: Final = 300
_HOSTS_REMEMBERED_MAX: Final = 64
_AUTHORITY: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)\]|(?P<host>[^:\[\]]+))(?::[0-9]*)?")


class FailureBackoff:
    """Slows down callers that guess keys.

    It is called only after a key was not found, so a valid key is never delayed, even if others guess from the same
    address. Each 401 waits up to a second. Guesses on many connections at once are limited by the number of
    connections.

    Each client address has one number: the time at which all its failures are forgotten. A failure moves it by
    `FAILURE_FORGOTTEN_MS`, up to a bound, so the failures of a client that stops are forgotten in a minute and a half.
    The clients that failed longest ago make room for new ones: a guesser with thousands of networks gains a few free
    tries, and uses no more memory.
    """

    __slots__ = ("_calm_at_ms",)

    def __init__(self) -> None:
        self._calm_at_ms: OrderedDict[object, int] = OrderedDict()

    def note_failure(self, address: str, now_ms: int) -> int:
        """Counts a failed attempt. Returns how many ms its 401 waits. `now_ms` is monotonic."""
        peer = _peer_of(address)
        calm_at_ms = self._calm_at_ms
        debt_ms = max(calm_at_ms.get(peer, 0) - now_ms, 0) + FAILURE_FORGOTTEN_MS
        debt_ms = min(debt_ms, _DEBT_MS_MAX)
        calm_at_ms[peer] = now_ms + debt_ms
        calm_at_ms.move_to_end(peer)
        if len(calm_at_ms) > PEERS_MAX:
            calm_at_ms.popitem(last=False)
        excess_ms = max(debt_ms - _FREE_MS, 0)
        return -(-excess_ms // FAILURE_FORGOTTEN_MS) * DELAY_STEP_MS

    def __len__(self) -> int:
        return len(self._calm_at_ms)


def _peer_of(address: str) -> object:
    """The address that is counted: an IPv4 address, or an IPv6 network of 64 bits: one subscriber gets that."""
    try:
        ip = ip_address(address)
    except ValueError:
        # A Unix socket has no address.
        return ""
    if isinstance(ip, IPv6Address):
        # A socket for both protocols shows IPv4 clients as mapped addresses. Without this they would all be one
        # network.
        return ip.ipv4_mapped or int(ip) >> 64
    return ip


class HostGuard:
    """Refuses requests of web pages that reach the server through a host name of their own (DNS rebinding).

    A page whose name resolves to 127.0.0.1 could talk to a local server without keys. The page cannot choose the `Host`
    header, which shows its name. The guard is for servers that listen on loopback without keys; pages cannot reach
    other servers, or need a key.
    """

    __slots__ = ("_allowed", "_host")

    def __init__(self, host: str) -> None:
        """`host` is the setting `TOPICS_HOST`, with or without a port."""
        self._host = _host_of(host) or host.lower()
        # Header values that passed, so that repeated values need only a lookup.
        self._allowed: set[bytes] = set()

    def allows(self, host_header: bytes) -> bool:
        """Whether `Host` (HTTP/2: `:authority`) is localhost, a loopback address or the configured host. The port is
        free.
        """
        if host_header in self._allowed:
            return True
        if not self._is_ours(host_header):
            return False
        if len(self._allowed) >= _HOSTS_REMEMBERED_MAX:
            self._allowed.clear()
        self._allowed.add(host_header)
        return True

    def _is_ours(self, host_header: bytes) -> bool:
        if len(host_header) > _HOST_HEADER_BYTES_MAX or not host_header.isascii():
            return False
        host = _host_of(host_header.decode("ascii"))
        return host is not None and (host in ("localhost", self._host) or _is_loopback(host))


def _host_of(authority: str) -> str | None:
    """The host of `host`, `host:port`, `[v6]` or `[v6]:port`, in lower case; None for anything else."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return None
    found: str = match["six"] or match["host"]
    return found.lower()


def _is_loopback(host: str) -> bool:
    """Only complete addresses count: `127.1` and `0x7f000001` are treated as names."""
    try:
        ip: IPv4Address | IPv6Address = ip_address(host)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback
