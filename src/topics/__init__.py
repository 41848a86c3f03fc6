"""topics: a durable event log for Python.

>>> import topics
>>> with topics.open("./topics-data") as log:
...     log.append("orders", [{"id": 1}])
...     log.read("orders").records

Each name is imported when it is first used, so that the command line starts without the engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.embedded.async_log import AsyncLog, open_async
    from topics.embedded.log import Log
    from topics.embedded.log import open_log as open  # noqa: A004 - `topics.open`, like the `open` of other modules
    from topics.embedded.states import RouterState, TopicState
    from topics.engine.config import TopicConfig
    from topics.engine.groups import Changed as GroupChanged
    from topics.engine.groups import Cursor as GroupCursor
    from topics.engine.queues.jobs import Counters as QueueCounters
    from topics.engine.queues.jobs import Extended, Job, Settled
    from topics.engine.settings import EngineSettings
    from topics.engine.topic.appended import Appended
    from topics.engine.topic.page import Page, Tombstone
    from topics.engine.writing.intake import NewRecord
    from topics.errors import TopicsError
    from topics.formats.records import Record

    __version__: str

__all__ = [
    "Appended",
    "AsyncLog",
    "EngineSettings",
    "Extended",
    "GroupChanged",
    "GroupCursor",
    "Job",
    "Log",
    "NewRecord",
    "Page",
    "QueueCounters",
    "Record",
    "RouterState",
    "Settled",
    "Tombstone",
    "TopicConfig",
    "TopicState",
    "TopicsError",
    "__version__",
    "open",
    "open_async",
]

_ORIGINS = {
    "Appended": "topics.engine.topic.write",
    "AsyncLog": "topics.embedded.async_log",
    "EngineSettings": "topics.engine.settings",
    "Extended": "topics.engine.queues.jobs",
    "GroupChanged": "topics.engine.groups:Changed",
    "GroupCursor": "topics.engine.groups:Cursor",
    "Job": "topics.engine.queues.jobs",
    "Log": "topics.embedded.log",
    "NewRecord": "topics.engine.writing.intake",
    "Page": "topics.engine.topic.page",
    "QueueCounters": "topics.engine.queues.jobs:Counters",
    "Record": "topics.formats.records",
    "RouterState": "topics.embedded.states",
    "Settled": "topics.engine.queues.jobs",
    "Tombstone": "topics.engine.topic.page",
    "TopicConfig": "topics.engine.config",
    "TopicState": "topics.embedded.states",
    "TopicsError": "topics.errors",
    "open": "topics.embedded.log:open_log",
    "open_async": "topics.embedded.async_log",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from topics.version import VERSION

        value: Any = VERSION
    elif name in _ORIGINS:
        module, _, attribute = _ORIGINS[name].partition(":")
        value = getattr(import_module(module), attribute or name)
    else:
        raise AttributeError(f"module 'topics' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
