"""The settings of the partitioned engine.

`StreamsSettings` lists every setting; `from_mapping` makes one of a dict.
"""

from topics.streams.settings.checks import check_settings
from topics.streams.settings.reading import environment_mapping, from_mapping, setting_names, to_toml
from topics.streams.settings.sections import CacheIndexes, StreamsSettings
from topics.streams.settings.units import UNLIMITED

__all__ = [
    "UNLIMITED",
    "CacheIndexes",
    "StreamsSettings",
    "check_settings",
    "environment_mapping",
    "from_mapping",
    "setting_names",
    "to_toml",
]
