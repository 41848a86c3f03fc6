"""Whether the configured cold tier is the one that belongs to this data directory."""

import threading
from collections.abc import Callable
from typing import TypeVar

from topics.engine.engine import Engine
from topics.engine.starting.report import RecoveryReport
from topics.errors import ColdUnavailable, StorageFull
from topics.limits import COLD_CLAIM_MS_MAX
from topics.storage.tiers.cached_store import CachedStore
from topics.storage.tiers.store import MissingStore
from topics.storage.tiers.store_id import ensure_store_id, read_store_id

T = TypeVar("T")


def claim_cold_tier(engine: Engine, report: RecoveryReport) -> None:
    """Claims the tier for this store.

    A tier that does not answer in time is no obstacle: only reads of cold records fail. A tier that should hold
    segments and has no STORE object is another tier, so it is not used.
    """
    cold = engine.cold
    if cold is None:
        return
    is_used = any(
        segment.tier == "cold" for topic in engine.topics.values() for segment in topic.live.segments.segments
    )
    store_id = engine.directory.store_id

    def claim() -> bool:
        """Whether the cold tier belongs to this data directory."""
        if is_used and read_store_id(cold) is None:
            return False
        ensure_store_id(cold, store_id)
        return True

    try:
        is_ours = _in_time(claim)
    except (ColdUnavailable, StorageFull) as error:
        report.warn(f"the cold tier cannot be used: {error.message}")
        return
    if is_ours is None:
        report.warn(f"the cold tier cannot be used now: {cold.address} does not answer")
    elif is_ours:
        engine.core.claim_cold()
    else:
        engine.core.use_cold(CachedStore(MissingStore(cold.address)))
        report.warn(
            f"{cold.address} is not the cold tier of this directory: its STORE object is missing; it is not used"
        )


def _in_time(work: Callable[[], T]) -> T | None:
    """What `work` returns or raises; None when that takes too long. `work` goes on by itself then."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="topics-cold-claim", daemon=True)
    thread.start()
    thread.join(COLD_CLAIM_MS_MAX / 1000)
    if errors:
        raise errors[0]
    return results[0] if results else None
