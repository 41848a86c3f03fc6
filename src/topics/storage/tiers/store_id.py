"""The STORE object of a tier: it says which data directory the tier belongs to."""

import re
from typing import Final

import msgspec

from topics.errors import Damaged, FutureVersion, StartRefused
from topics.storage.layout import STORE
from topics.storage.tiers.store import SegmentStore

STORE_FORMAT: Final = 1
# A STORE object is far smaller. Of a longer object only so much is read, which is enough to refuse it.
STORE_BYTES_MAX: Final = 4096

_STORE_ID: Final = re.compile(r"[0-9a-f]{32}")


class _StoreFile(msgspec.Struct, frozen=True):
    """The STORE object: which data directory a tier belongs to. Members may be added without a new format."""

    format: int
    # Optional only to tell a later format, with unknown members, from a damaged file.
    store_id: str = ""


def read_store_id(store: SegmentStore) -> str | None:
    """The id in the tier's STORE object, None when there is no such object."""
    try:
        data = store.read_range(STORE, 0, STORE_BYTES_MAX)
    except FileNotFoundError:
        return None
    where = f"{store.address}/{STORE}"
    try:
        content = msgspec.json.decode(data, type=_StoreFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(where, 0, 'JSON with "format" and "store_id"', f"{len(data)} bytes: {error}") from error
    if content.format > STORE_FORMAT:
        raise FutureVersion(f"{where}: format {content.format}, this version knows {STORE_FORMAT}; use a newer topics")
    if not _STORE_ID.fullmatch(content.store_id):
        raise Damaged(where, 0, "a store id of 32 hex digits", repr(content.store_id))
    return content.store_id


def ensure_store_id(store: SegmentStore, store_id: str) -> None:
    """Claims a tier that has no STORE yet; refuses one that belongs to another data directory.

    A caller that knows of segments in this tier calls `read_store_id` first: a tier that should have a STORE and has
    none is another folder or bucket, and must not be claimed.
    """
    assert _STORE_ID.fullmatch(store_id), "a store id is 32 hex digits"
    found = read_store_id(store)
    if found is None:
        store.put(STORE, msgspec.json.encode(_StoreFile(format=STORE_FORMAT, store_id=store_id)))
        # Read again: another server may have claimed the same empty tier meanwhile.
        found = read_store_id(store)
    if found != store_id:
        raise StartRefused(
            f"{store.address}: this cold tier belongs to another data directory: its {STORE} says {found}, "
            f"this one is {store_id}; give each data directory a cold tier of its own"
        )
