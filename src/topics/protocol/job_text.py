"""Jobs and leases as JSON text: `{"$seq":…,"lease_id":"lease_1f","deadline":…,…}`."""

import re
from typing import Final

import msgspec

from topics.errors import InvalidRequest

_json_string: Final = msgspec.json.Encoder().encode
_TOKEN: Final = re.compile(r"lease_([0-9a-fA-F]{1,16})", re.ASCII)


def job_text(
    seq: int,
    ts: int,
    tag: str | None,
    data: bytes,
    meta: bytes | None,
    lease_id: int,
    deadline: int,
    deliveries: int,
) -> bytes:
    """The members of a job, without the braces: a stream adds the topic."""
    return b'"$seq":%d,"lease_id":"lease_%x","deadline":%d,"$ts":%d%b,"deliveries":%d,"data":%b%b' % (
        seq,
        lease_id,
        deadline,
        ts,
        b"" if tag is None else b',"$tag":' + _json_string(tag),
        deliveries,
        data,
        b"" if meta is None else b',"meta":' + meta,
    )


def lease_token(lease_id: int) -> str:
    return f"lease_{lease_id:x}"


def lease_id_of(token: str) -> int | None:
    """The id in a lease token; None for an empty token, which means any lease."""
    if not token:
        return None
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise InvalidRequest("a lease_id is lease_ and a hexadecimal number, as a claim gave it")
    return int(match[1], 16)
