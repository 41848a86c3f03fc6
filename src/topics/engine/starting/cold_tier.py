"""Whether the configured cold tier is the one that belongs to this data directory."""

from topics.engine.engine import Engine
from topics.engine.starting.report import RecoveryReport
from topics.errors import ColdUnavailable, StorageFull
from topics.storage.tiers.cached_store import CachedStore
from topics.storage.tiers.store import MissingStore
from topics.storage.tiers.store_id import ensure_store_id, read_store_id


def claim_cold_tier(engine: Engine, report: RecoveryReport) -> None:
    """Claims the tier for this store.

    A tier that does not answer is no obstacle: only reads of cold records fail. A tier that should hold segments and
    has no STORE object is another tier, so it is not used.
    """
    cold = engine.cold
    if cold is None:
        return
    is_used = any(
        segment.tier == "cold" for topic in engine.topics.values() for segment in topic.live.segments.segments
    )
    try:
        if is_used and read_store_id(cold) is None:
            engine.core.use_cold(CachedStore(MissingStore(cold.address)))
            report.warn(
                f"{cold.address} is not the cold tier of this directory: its STORE object is missing; it is not used"
            )
        else:
            ensure_store_id(cold, engine.directory.store_id)
            engine.core.claim_cold()
    except (ColdUnavailable, StorageFull) as error:
        report.warn(f"the cold tier cannot be used: {error.message}")
