"""topics: a durable event log for Python.

>>> import topics
>>> with topics.open("./topics-data") as log:
...     log.append("orders", [{"id": 1}])
...     log.read("orders").records

The names are loaded when they are first used, so that the command line starts without the engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.async_log import AsyncLog, open_async
    from topics.embedded import Log, TopicState
    from topics.embedded import open_log as open  # noqa: A004 - `topics.open`, as people know it from other modules
    from topics.engine.config import TopicConfig
    from topics.engine.intake import NewRecord
    from topics.engine.page import Page, Tombstone
    from topics.engine.settings import EngineSettings
    from topics.engine.staged import Appended
    from topics.errors import TopicsError
    from topics.formats.records import Record

    __version__: str

__all__ = [
    "Appended",
    "AsyncLog",
    "EngineSettings",
    "Log",
    "NewRecord",
    "Page",
    "Record",
    "Tombstone",
    "TopicConfig",
    "TopicState",
    "TopicsError",
    "__version__",
    "open",
    "open_async",
]

_ORIGINS = {
    "Appended": "topics.engine.staged",
    "AsyncLog": "topics.async_log",
    "EngineSettings": "topics.engine.settings",
    "Log": "topics.embedded",
    "NewRecord": "topics.engine.intake",
    "Page": "topics.engine.page",
    "Record": "topics.formats.records",
    "Tombstone": "topics.engine.page",
    "TopicConfig": "topics.engine.config",
    "TopicState": "topics.embedded",
    "TopicsError": "topics.errors",
    "open": "topics.embedded:open_log",
    "open_async": "topics.async_log",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from topics.version import package_version

        value: Any = package_version()
    elif name in _ORIGINS:
        module, _, attribute = _ORIGINS[name].partition(":")
        value = getattr(import_module(module), attribute or name)
    else:
        raise AttributeError(f"module 'topics' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
