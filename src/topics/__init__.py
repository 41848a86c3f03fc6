"""topics: a durable event log for Python.

>>> import topics
>>> with topics.open("./topics-data") as log:
...     log.append("orders", [{"id": 1}])
...     log.read("orders").records
"""

from importlib.metadata import PackageNotFoundError, version

from topics.embedded import Log, TopicState, open_log as open
from topics.engine.config import TopicConfig
from topics.engine.intake import NewRecord
from topics.engine.page import Page, Tombstone
from topics.engine.settings import EngineSettings
from topics.engine.staged import Appended
from topics.errors import TopicsError
from topics.formats.records import Record

try:
    __version__ = version("topics")
except PackageNotFoundError:
    __version__ = "0.0.0"

__all__ = [
    "Appended",
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
]
