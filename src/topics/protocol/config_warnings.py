"""Warnings in the answer to a config: members that are not known, and members that cannot do what they say.

Unknown members are ignored, because a client of a later version may send them. But a misspelt member could lower a
promise without a word: `durabilty` leaves the durability at its default.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from topics.protocol.request_body import ConfigBody, RedriveBody, RouterBody

# More unknown members than this are counted, and longer names are cut: each comparison of names takes time.
_NAMED_MAX: Final = 8
_NAME_CHARS_MAX: Final = 60

_DEFAULTS: Final = ConfigBody()
# Members that promise something for jobs, which only queues have. Other members of queues only fit their use.
_OF_QUEUES: Final = ("max_deliveries", "dead_letter")


def config_warnings(body: ConfigBody, names: Iterable[str]) -> list[str]:
    """Warnings for the config of a topic. `names` are the members as they were sent."""
    warnings = _unknown_members(names, ConfigBody.__struct_fields__)
    if body.durable and body.durability not in (None, "fsync"):
        warnings.append(f"durable is true, and has no effect: durability is {body.durability}, and wins")
    if body.type == "log":
        without_effect = [name for name in _OF_QUEUES if getattr(body, name) != getattr(_DEFAULTS, name)]
        if without_effect:
            warnings.append(f"only queues use {', '.join(without_effect)}: the type of this topic is log")
    elif body.dead_letter is not None and body.max_deliveries == 0:
        warnings.append("dead_letter has no effect without max_deliveries: jobs are delivered again without end")
    elif body.max_deliveries and body.dead_letter is None:
        warnings.append("max_deliveries has no effect without dead_letter: jobs are delivered again without end")
    return warnings


def router_warnings(names: Iterable[str]) -> list[str]:
    """Warnings for the body of a router."""
    return _unknown_members(names, RouterBody.__struct_fields__)


def redrive_warnings(names: Iterable[str]) -> list[str]:
    """Warnings for the body of a redrive: without a filter that is misspelt, more jobs match."""
    return _unknown_members(names, RedriveBody.__struct_fields__)


def _unknown_members(names: Iterable[str], known: tuple[str, ...]) -> list[str]:
    unknown = [name for name in names if name not in known]
    warnings = [_unknown_member(name, known) for name in unknown[:_NAMED_MAX]]
    if len(unknown) > _NAMED_MAX:
        warnings.append(f"{len(unknown) - _NAMED_MAX} more members are not known, and were ignored")
    return warnings


def _unknown_member(name: str, known: tuple[str, ...]) -> str:
    if len(name) > _NAME_CHARS_MAX:
        return f'"{name[:_NAME_CHARS_MAX]}…" is not known, and was ignored'
    nearest = get_close_matches(name.lower().replace("-", "_"), known, n=1)
    return f'"{name}" is not known, and was ignored' + (f": did you mean {nearest[0]}?" if nearest else "")
