"""Topic config: which records a topic keeps, for how long, and how durable an answered write is."""

from difflib import get_close_matches
from typing import Any, Final, Literal, get_args

import msgspec

from topics.engine.names import is_topic_name
from topics.errors import BadFrame, InvalidRequest
from topics.limits import U64_MAX

Durability = Literal["ephemeral", "memory", "disk", "fsync"]
Discard = Literal["old", "reject"]
TopicType = Literal["log", "queue"]

DURABILITIES: tuple[Durability, ...] = get_args(Durability)
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "type": get_args(TopicType),
    "discard": get_args(Discard),
    "durability": DURABILITIES,
}

LEASE_MS_MIN = 100
LEASE_MS_MAX = 86_400_000
CLAIM_JITTER_MS_MAX = 5000
PRIORITY_MIN = -(2**31)
PRIORITY_MAX = 2**31 - 1


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The config members of the HTTP contract. `durable` is not stored: it follows from `durability`."""

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
    durability: Durability = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False

    @property
    def durable(self) -> bool:
        return self.durability == "fsync"


_UNSIGNED = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
)


def checked_config(members: dict[str, Any]) -> TopicConfig:
    """The config with these members. Raises `InvalidRequest` for a bad name, type or range.

    `durable` is turned into `durability`. `lease_ms` and `claim_jitter_ms` are clamped to their bounds.
    """
    resolved = _resolved(members)
    _check_members(resolved)
    try:
        config = msgspec.convert(resolved, TopicConfig)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"bad topic config: {error}") from error
    if config.priority is not None and not PRIORITY_MIN <= config.priority <= PRIORITY_MAX:
        raise InvalidRequest("bad topic config: priority is out of range")
    for name in _UNSIGNED:
        if not 0 <= getattr(config, name) <= U64_MAX:
            raise InvalidRequest(f"bad topic config: {name} is out of range")
    if config.dead_letter is not None and not is_topic_name(config.dead_letter):
        raise InvalidRequest(
            f"bad topic config: dead_letter is {config.dead_letter!r}, which is not a topic name",
            {"dead_letter": config.dead_letter},
        )
    return msgspec.structs.replace(
        config,
        lease_ms=min(max(config.lease_ms, LEASE_MS_MIN), LEASE_MS_MAX),
        claim_jitter_ms=min(config.claim_jitter_ms, CLAIM_JITTER_MS_MAX),
    )


def _check_members(members: dict[str, Any]) -> None:
    """Checks names and choices. The error for an unknown name suggests a similar name."""
    for name, value in members.items():
        if name not in TopicConfig.__struct_fields__:
            near = get_close_matches(name, (*TopicConfig.__struct_fields__, "durable"), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidRequest(f"unknown topic config member: {name}{hint}")
        choices = _CHOICES.get(name)
        if choices is not None and value not in choices:
            raise InvalidRequest(f"bad topic config: {name} is {value!r}: choose among {', '.join(choices)}")


def _resolved(members: dict[str, Any]) -> dict[str, Any]:
    """Members without `durable`. `durable` sets the durability only where `durability` is missing or null."""
    resolved = dict(members)
    durable = resolved.pop("durable", False)
    if not isinstance(durable, bool):
        raise InvalidRequest("bad topic config: durable must be true or false")
    if resolved.get("durability") is None:
        resolved["durability"] = "fsync" if durable else "disk"
    return resolved


def stored_config(members: dict[str, Any]) -> TopicConfig:
    """A config as it was read from disk. Members of a newer minor version are ignored. Raises `BadFrame`."""
    try:
        config = msgspec.convert(members, TopicConfig)
    except msgspec.ValidationError as error:
        raise BadFrame(f"not a topic config: {error}") from error
    return _SHARED.setdefault(config, config)


def config_members(config: TopicConfig) -> dict[str, Any]:
    """The members to store: only members that differ from the default."""
    if config == DEFAULT_CONFIG:
        return {}
    return {
        name: value for name, value in msgspec.structs.asdict(config).items() if value != getattr(DEFAULT_CONFIG, name)
    }


DEFAULT_CONFIG: Final = TopicConfig()
# Equal configs share one object: many topics have few different configs.
_SHARED: dict[TopicConfig, TopicConfig] = {DEFAULT_CONFIG: DEFAULT_CONFIG}
