"""topics: a durable event log for Python.

>>> import topics
>>> with topics.open("./topics-data") as log:
...     log.append("orders", [{"id": 1}])
...     log.read("orders").records
>>> with topics.Client("http://localhost:4000") as client:
...     client.append("orders", [{"id": 1}])

Each name is imported when it is first used, so that the command line starts without the engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.client.aio.client import AsyncClient
    from topics.client.aio.producer import AsyncProducer
    from topics.client.aio.topic import AsyncTopic
    from topics.client.aio.worker import AsyncWorker, async_worker
    from topics.client.following import Seen, TopicGone
    from topics.client.retrying import Unreachable
    from topics.client.sync.client import Client
    from topics.client.sync.producer import Producer
    from topics.client.sync.topic import Topic
    from topics.client.sync.worker import Worker, worker
    from topics.client.typed import TypedJob, TypedRecord
    from topics.embedded.async_log import AsyncLog, open_async
    from topics.embedded.log import Log
    from topics.embedded.log import open_log as open  # noqa: A004 - `topics.open`, like the `open` of other modules
    from topics.embedded.states import RouterState, TopicState
    from topics.engine.config import TopicConfig
    from topics.engine.queues.jobs import Counters as QueueCounters
    from topics.engine.settings import EngineSettings
    from topics.engine.topic.appended import Appended
    from topics.engine.topic.reading import Page
    from topics.errors import TopicsError
    from topics.formats.records import Record
    from topics.results import Extended, GroupChanged, GroupCursor, Job, NewRecord, Settled, Tombstone

    __version__: str

__all__ = [
    "Appended",
    "AsyncClient",
    "AsyncLog",
    "AsyncProducer",
    "AsyncTopic",
    "AsyncWorker",
    "Client",
    "EngineSettings",
    "Extended",
    "GroupChanged",
    "GroupCursor",
    "Job",
    "Log",
    "NewRecord",
    "Page",
    "Producer",
    "QueueCounters",
    "Record",
    "RouterState",
    "Seen",
    "Settled",
    "Tombstone",
    "Topic",
    "TopicConfig",
    "TopicGone",
    "TopicState",
    "TopicsError",
    "TypedJob",
    "TypedRecord",
    "Unreachable",
    "Worker",
    "__version__",
    "async_worker",
    "open",
    "open_async",
    "worker",
]

_ORIGINS = {
    "Appended": "topics.engine.topic.write_state",
    "AsyncClient": "topics.client.aio.client",
    "AsyncLog": "topics.embedded.async_log",
    "AsyncProducer": "topics.client.aio.producer",
    "AsyncTopic": "topics.client.aio.topic",
    "AsyncWorker": "topics.client.aio.worker",
    "Client": "topics.client.sync.client",
    "EngineSettings": "topics.engine.settings",
    "Extended": "topics.results",
    "GroupChanged": "topics.results",
    "GroupCursor": "topics.results",
    "Job": "topics.results",
    "Log": "topics.embedded.log",
    "NewRecord": "topics.results",
    "Page": "topics.engine.topic.reading",
    "Producer": "topics.client.sync.producer",
    "QueueCounters": "topics.engine.queues.jobs:Counters",
    "Record": "topics.formats.records",
    "RouterState": "topics.embedded.states",
    "Seen": "topics.client.following",
    "Settled": "topics.results",
    "Tombstone": "topics.results",
    "Topic": "topics.client.sync.topic",
    "TopicConfig": "topics.engine.config",
    "TopicGone": "topics.client.following",
    "TopicState": "topics.embedded.states",
    "TopicsError": "topics.errors",
    "TypedJob": "topics.client.typed",
    "TypedRecord": "topics.client.typed",
    "Unreachable": "topics.client.retrying",
    "Worker": "topics.client.sync.worker",
    "async_worker": "topics.client.aio.worker",
    "open": "topics.embedded.log:open_log",
    "open_async": "topics.embedded.async_log",
    "worker": "topics.client.sync.worker",
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
