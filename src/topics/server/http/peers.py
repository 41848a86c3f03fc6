"""What may be asked of a caller before its request is looked at: patience after bad keys, and the right host name.

Loop thread only, both. Time is passed in.
"""

import re
from collections import OrderedDict
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

# A peer may fail this often at once, and then once per `FAILURE_FORGOTTEN_MS`, without being slowed down.
FAILURES_FREE: Final = 20
FAILURE_FORGOTTEN_MS: Final = 3000
# Each failure beyond that is answered later than the one before it.
DELAY_STEP_MS: Final = 100
DELAY_MS_MAX: Final = 1000
PEERS_MAX: Final = 10_000
_FREE_MS: Final = FAILURES_FREE * FAILURE_FORGOTTEN_MS
_DEBT_MS_MAX: Final = _FREE_MS + DELAY_MS_MAX // DELAY_STEP_MS * FAILURE_FORGOTTEN_MS

_HOST_HEADER_BYTES_MAX: Final = 300
_HOSTS_REMEMBERED_MAX: Final = 64
_AUTHORITY: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)\]|(?P<host>[^:\[\]]+))(?::[0-9]*)?")


class FailureBackoff:
    """Slows down callers that guess keys (faults.md L09).

    Asked after the key was looked up, and only when that failed: a good key is never slowed down, whoever else
    guesses from the same address. A guesser waits up to a second for each 401, and learns nothing from it. What
    it may still do is wait on many connections at once: their number is bounded elsewhere.

    One number per peer: the time at which all its failures are forgotten. Each failure moves it on by
    `FAILURE_FORGOTTEN_MS`, up to a bound, so that a peer which stops is forgotten in a minute and a half. The
    peers that failed longest ago make room for new ones: a guesser with thousands of networks gains a few free
    tries, and no memory of ours.
    """

    __slots__ = ("_calm_at_ms",)

    def __init__(self) -> None:
        self._calm_at_ms: OrderedDict[object, int] = OrderedDict()

    def note_failure(self, address: str, now_ms: int) -> int:
        """Counts a failed attempt; how many ms its 401 has to wait. `now_ms` is monotonic."""
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
    """Who is counted: an IPv4 address, or an IPv6 network of 64 bits, which is what one subscriber gets."""
    try:
        ip = ip_address(address)
    except ValueError:
        # A Unix socket has no address worth the name.
        return ""
    if isinstance(ip, IPv6Address):
        # A socket that takes both kinds shows IPv4 peers this way. As one network they would all be one peer.
        return ip.ipv4_mapped or int(ip) >> 64
    return ip


class HostGuard:
    """Refuses requests that a web page made through a host name of its own (faults.md I17).

    A page whose name suddenly resolves to 127.0.0.1 may talk to a server there, and on one without keys that is
    all it takes; the `Host` it cannot choose gives it away. For servers that listen on loopback and have no keys:
    anything else is out of a page's reach, or asks for a key.
    """

    __slots__ = ("_allowed", "_host")

    def __init__(self, host: str) -> None:
        """`host` is `TOPICS_HOST`, with or without a port."""
        self._host = _host_of(host) or host.lower()
        # Values of the header that passed, verbatim: what comes in over and over is looked up only.
        self._allowed: set[bytes] = set()

    def allows(self, host_header: bytes) -> bool:
        """Whether `Host` (h2: `:authority`) is localhost, a loopback address or the configured host, at any port."""
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
    """Only addresses in full: `127.1` and `0x7f000001` are names to us."""
    try:
        ip: IPv4Address | IPv6Address = ip_address(host)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback
