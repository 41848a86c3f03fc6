"""An engine on a fake disk that is opened, crashed and opened again. Shared by the sweeps of queues and routers."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.crash.harness import ROOT, SETTINGS, Blow
from topics.engine.runtime import InlineRuntime
from topics.engine.settings import EngineSettings
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.errors import TopicsError
from topics.storage.checkpoints.runner import InlineRunner
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk


class EngineWorld:
    # Most flushes until a call is answered.
    turns: ClassVar[int]

    def __init__(self, settings: EngineSettings = SETTINGS) -> None:
        self.settings = settings
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.number = 0
        self.opened: OpenEngine

    @property
    def engine(self) -> Any:
        return self.opened.engine

    def open(self) -> None:
        self.opened = open_engine(
            self.disk,
            ROOT,
            settings=self.settings,
            clock=self.clock,
            runtime=InlineRuntime(),
            runner=InlineRunner(self.disk),
        )

    def crash(self, blow: Blow, seed: int = 0) -> None:
        self.disk.on_operation = None
        if blow is None:
            self.disk.kill()
        else:
            self.disk.crash(blow, seed)

    def close(self) -> None:
        self.opened.close(lambda _: None)
        self.opened.release()

    def _answer(self, answers: list[Any]) -> Any:
        for _ in range(self.turns):
            self.engine.flush()
        (answer,) = answers
        assert not isinstance(answer, TopicsError), answer
        return answer
