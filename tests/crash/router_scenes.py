"""Scenes of the router sweep: small topologies, each with operations that make its copies hard to keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.crash.router_world import RouterWorld


@dataclass(frozen=True)
class Scene:
    # Topic name -> its config members. The durability is among them only if the scene needs a certain one.
    topics: dict[str, dict[str, Any]]
    work: Callable[[RouterWorld], None]
    # Topics that are written to after a crash, in one turn.
    sources: tuple[str, ...] = ("source",)
    # Topics with a cap, which are emptied at the end.
    drained: tuple[str, ...] = ()


def changes(world: RouterWorld) -> None:
    """All operations that make a router log its derived copies, with checkpoints and a clean stop in between."""
    world.open()
    world.put()
    world.route("copy", "source", "copy")
    world.route("chain", "copy", "chain")
    world.route("pair", "source", "pair")
    world.write(4)
    world.look()
    world.write(2)
    world.write(1, "copy")
    world.look()
    world.checkpoint()
    world.write(3)
    world.route("pair.filtered", "source", "pair", tag="t1")
    world.look()
    world.delete_first("source", 3)
    world.write(2)
    world.look()
    world.delete_first("copy", 2)
    world.look()
    world.route("copy", "source", "copy", preserve_tag=False, guarantee="exactly_once")
    world.write(3)
    world.look()
    world.delete_first("source", 4)
    world.unroute("pair.filtered")
    world.write(2)
    world.look()
    world.close()
    world.open()
    world.write(3)
    world.look()
    world.delete_first("chain", 1)
    world.checkpoint()
    world.write(2)
    world.unroute("chain")
    world.look()


def caps(world: RouterWorld) -> None:
    """A topic with a cap that is first only a dest, then also a source. No record is lost before it is copied."""
    world.open()
    world.put()
    world.route("chain", "copy", "chain")
    world.write(3, "copy")
    world.look()
    world.route("copy", "source", "copy")
    world.route("side", "source", "side")
    for _ in range(3):
        world.write(2)
        world.look()
    world.burst("source", "copy", "source")
    world.look()
    world.checkpoint()
    world.burst("source", "copy")
    world.look()
    world.write(3)
    world.look()
    world.put("copy", cap_records=0)
    world.write(3)
    world.look()
    world.put("copy", cap_records=5)
    world.burst("source", "source", "side")
    world.look()
    world.checkpoint()
    world.delete_first("side", 2)
    world.write(3)
    world.look()


def trims(world: RouterWorld) -> None:
    """A source that loses records before they are copied, with dests of every kind."""
    world.open()
    world.put()
    world.route("copy", "source", "copy")
    world.route("chain", "copy", "chain")
    world.route("pair", "source", "pair")
    world.route("pair.filtered", "source", "pair", tag="t2")
    world.write(3)
    world.look()
    world.write(9)
    world.look()
    world.write(2)
    world.checkpoint()
    world.write(8)
    world.look()
    world.write(1, "copy")
    world.write(4)
    world.write(5)
    world.checkpoint()
    world.write(2)
    world.look()


def keys(world: RouterWorld) -> None:
    """Routers with `exactly_once`, and records that were written with the keys of copies before the copies were
    made."""
    world.open()
    world.put()
    world.route("copy", "source", "copy", guarantee="exactly_once")
    world.route("capped", "source", "capped", guarantee="exactly_once")
    world.route("chain", "copy", "chain", guarantee="exactly_once")
    world.write(2)
    world.look()
    world.write_by_hand("copy", "source", "copy")
    world.write(2)
    world.look()
    world.write_by_hand("capped", "source", "capped")
    world.write_by_hand("copy", "source", "copy")
    world.checkpoint()
    world.write(1)
    world.look()
    world.write(2)
    world.write_by_hand("chain", "copy", "chain")
    world.look()
    world.write_by_hand("copy", "source", "copy")
    world.burst("source", "copy", "source")
    world.look()
    world.delete_first("copy", 3)
    world.write_by_hand("capped", "source", "capped")
    world.checkpoint()
    world.write(3)
    world.look()


def full(world: RouterWorld) -> None:
    """Dests of all classes that refuse records above their caps, and an ephemeral one."""
    world.open()
    world.put()
    world.route("full", "source", "full")
    world.route("behind", "full", "behind")
    world.route("memory", "source", "memory")
    world.write(2)
    world.look()
    world.write(4)
    world.look()
    world.delete_first("full", 2)
    world.look()
    world.checkpoint()
    world.delete_first("memory", 2)
    world.look()
    world.write(3)
    world.delete_first("full", 1)
    world.delete_first("memory", 3)
    world.look()
    world.burst("source", "source")
    world.look()
    world.checkpoint()
    world.delete_first("full", 3)
    world.look()


def ephemeral(world: RouterWorld) -> None:
    """Ephemeral dests, and routers that copy from them."""
    world.open()
    world.put()
    world.route("memory", "source", "memory")
    world.route("kept", "memory", "kept")
    world.route("filtered", "source", "filtered", tag="t1")
    world.write(3)
    world.look()
    world.write(1, "memory")
    world.checkpoint()
    world.write(3)
    world.look()
    world.burst("source", "memory", "source")
    world.look()
    world.close()
    world.open()
    world.check()
    world.write(4)
    world.look()
    world.delete_first("kept", 2)
    world.write(2)
    world.look()


def cycle(world: RouterWorld) -> None:
    """Two topics that copy to each other, and a third topic that gets copies from both."""
    world.open()
    world.put()
    world.route("there", "source", "back")
    world.route("here", "back", "source", allow_cycle=True)
    world.route("end", "back", "end")
    world.write(1)
    world.look()
    world.write(2, "back")
    world.look()
    world.checkpoint()
    world.burst("source", "back")
    world.look()
    world.write(1)
    world.checkpoint()
    world.look()
    world.write(1, "back")
    world.look()


def losing_cycle(world: RouterWorld) -> None:
    """Two topics that copy to each other, one of them with a cap: records are lost before they are copied on."""
    world.open()
    world.put()
    world.route("there", "source", "back")
    world.route("here", "back", "source", allow_cycle=True)
    world.write(5)
    world.look()
    world.checkpoint()
    world.burst("source", "back", "source")
    world.look()
    world.write(4)
    world.checkpoint()
    world.look()


SCENES: Final = {
    "changes": Scene({name: {} for name in ("source", "copy", "chain", "pair")}, changes),
    "caps": Scene(
        {"source": {"cap_records": 7}, "copy": {"cap_records": 4}, "chain": {}, "side": {"cap_records": 5}},
        caps,
        ("source", "copy"),
    ),
    "trims": Scene({"source": {"cap_records": 4}, "copy": {}, "chain": {}, "pair": {}}, trims),
    "keys": Scene({"source": {}, "copy": {}, "capped": {"cap_records": 5}, "chain": {}}, keys),
    "full": Scene(
        {
            "source": {},
            "full": {"cap_records": 3, "discard": "reject"},
            "behind": {},
            "memory": {"durability": "ephemeral", "cap_records": 3, "discard": "reject"},
        },
        full,
        drained=("full",),
    ),
    "ephemeral": Scene(
        {
            "source": {},
            "memory": {"durability": "ephemeral"},
            "kept": {},
            "filtered": {"durability": "ephemeral"},
        },
        ephemeral,
        ("source", "memory"),
    ),
    "cycle": Scene({"source": {}, "back": {}, "end": {}}, cycle, ("source", "back")),
    "losing cycle": Scene({"source": {"cap_records": 3}, "back": {}}, losing_cycle, ("source", "back")),
}
