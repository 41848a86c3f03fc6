"""The routers and bridges that one topic is the dest or the source of, and the copies in it that the log has no frames
of.

*Derived* copies are published without frames: a start makes them again from the source (see `routers.forwarding`).
Only this module assigns the fields of `RouterLinks`. Owner only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topics.engine.topic.hops import HopRuns
from topics.formats.control import BridgeUpdate
from topics.formats.snapshot import BridgeState

if TYPE_CHECKING:
    from topics.engine.topic.router import Router


class RouterLinks:
    __slots__ = (
        "_changes_under_way",
        "bridges",
        "copied_by",
        "copied_first_seq",
        "copied_last_seq",
        "hops",
        "routers_in",
        "routers_out",
    )

    def __init__(self) -> None:
        # Routers that copy into the topic, and routers that copy from it.
        self.routers_in: tuple[Router, ...] = ()
        self.routers_out: tuple[Router, ...] = ()
        # By name. Few topics have bridges.
        self.bridges: dict[str, BridgeState] | None = None
        # First derived copy that no frame holds, and the router that made it. 0: there is none.
        self.copied_first_seq = 0
        self.copied_by: Router | None = None
        # The last derived copy ever made: a checkpoint puts these into segments, the log may not have them.
        self.copied_last_seq = 0
        # Changes being logged that a repeated run of the routers would not see at their place.
        self._changes_under_way = 0
        # How often the records of the topic were copied before; only while the topic is dest and source at once.
        self.hops: HopRuns | None = None

    # Routers.

    def add_in(self, router: Router) -> None:
        self.routers_in = (*self.routers_in, router)

    def add_out(self, router: Router) -> None:
        self.routers_out = (*self.routers_out, router)

    def remove_in(self, router: Router) -> None:
        self.routers_in = tuple(other for other in self.routers_in if other is not router)

    def remove_out(self, router: Router) -> None:
        self.routers_out = tuple(other for other in self.routers_out if other is not router)
        if not self.routers_out:
            self.hops = None

    # Bridges.

    def bridge_states(self) -> list[BridgeState]:
        return [] if self.bridges is None else list(self.bridges.values())

    def restore_bridges(self, states: Sequence[BridgeState]) -> None:
        self.bridges = {state.name: state for state in states} or None

    def apply_bridge(self, update: BridgeUpdate) -> None:
        """The write or note with this update is committed, or was found in the log."""
        bridges = self.bridges
        if update.event == "put":
            if bridges is None:
                bridges = self.bridges = {}
            bridges[update.name] = BridgeState(update.name, update.definition, update.position)
        elif bridges is not None and update.name in bridges:
            if update.event == "advanced":
                bridges[update.name] = BridgeState(update.name, bridges[update.name].definition, update.position)
            else:
                del bridges[update.name]
                self.bridges = bridges or None

    # Changes during which copies are logged.

    @property
    def must_log_copies(self) -> bool:
        """Whether a change is being logged that a repeated run of the routers would not see at its place."""
        return self._changes_under_way > 0

    def begin_change(self) -> None:
        self._changes_under_way += 1

    def end_change(self) -> None:
        self._changes_under_way -= 1

    # Derived copies.

    def note_derived(self, router: Router, first_seq: int, last_seq: int) -> None:
        """The router published copies that no frame holds."""
        if not self.copied_first_seq:
            self.copied_first_seq = first_seq
            self.copied_by = router
        self.copied_last_seq = last_seq

    def take_derived(self) -> tuple[int, Router]:
        """(first seq, router) of the derived copies, whose frames are queued now."""
        first_seq, router = self.copied_first_seq, self.copied_by
        assert router is not None
        self.copied_first_seq, self.copied_by = 0, None
        return first_seq, router

    def put_derived_back(self, first_seq: int, router: Router) -> None:
        """Their frames were not written."""
        self.copied_first_seq, self.copied_by = first_seq, router

    # Hops.

    def note_hops(self, first_seq: int, hops: Sequence[int]) -> None:
        """Remembers how often these copies were copied, if a router will ask for it."""
        if (runs := self._noted_hops()) is not None:
            for seq, count in enumerate(hops, first_seq):
                runs.note(seq, count)

    def note_hops_of_holes(self, first_seq: int, last_seq: int, hops: int) -> None:
        """Remembers how often the records would have been copied that a range of holes stands for."""
        if (runs := self._noted_hops()) is not None:
            runs.note_range(first_seq, last_seq, hops)

    def _noted_hops(self) -> HopRuns | None:
        if not self.routers_out:
            self.hops = None
        elif self.hops is None:
            self.hops = HopRuns()
        return self.hops

    def restore_hops(self, runs: Sequence[tuple[int, int, int]]) -> None:
        self.hops = HopRuns(runs) if runs else None
