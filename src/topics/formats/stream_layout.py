"""The names of files and folders in a data directory of the partitioned engine.

    {state log of the flavour}
    streams/{stream_id}/topics/{topic_id}/partitions/{partition_id}/
        {start_offset:020d}.log     messages, back to back
        {start_offset:020d}.index   one entry for each message
        {start_offset:020d}.codec   the name of the algorithm that compresses its payloads; no file: none
        offsets/consumers/{id}  offsets/groups/{id}

A directory has one of two flavours: `page` with the state log `state.messages`, or `iggy` with `state/log`. The
flavours differ in the state log and in the order of user headers and payload in a message.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

STATE_FOLDER: Final = "state"
# By flavour, below the data directory.
STATE_LOGS: Final = {"page": "state.messages", "iggy": f"{STATE_FOLDER}/log"}
LOCK_FILE: Final = ".topics.lock"
OFFSETS_FOLDER: Final = "offsets"

LOG: Final = ".log"
INDEX: Final = ".index"
CODEC: Final = ".codec"
TEMPORARY: Final = ".tmp"

SEGMENT_FILE: Final = re.compile(r"([0-9]{20})(\.log|\.index|\.codec)(\.tmp)?")


class BodyOrder(Enum):
    """Which part of a body comes first. On the wire the payload comes first, in both flavours."""

    HEADERS_FIRST = "page"
    PAYLOAD_FIRST = "iggy"


class Flavour(Enum):
    PAGE = "page"
    IGGY = "iggy"

    @property
    def body_order(self) -> BodyOrder:
        return BodyOrder.HEADERS_FIRST if self is Flavour.PAGE else BodyOrder.PAYLOAD_FIRST

    def state_log_path(self, root: str) -> str:
        return f"{root}/{STATE_LOGS[self.value]}"

    def info_path(self, root: str) -> str:
        return f"{root}/info.json" if self is Flavour.PAGE else f"{root}/{STATE_FOLDER}/info"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamKeys:
    """Keys are paths below the data directory, such as `streams/0/topics/0/partitions/0`. Settings name the folders."""

    streams: str = "streams"
    topics: str = "topics"
    partitions: str = "partitions"

    def stream(self, stream_id: int) -> str:
        return f"{self.streams}/{stream_id}"

    def topics_of(self, stream_id: int) -> str:
        return f"{self.stream(stream_id)}/{self.topics}"

    def topic(self, stream_id: int, topic_id: int) -> str:
        return f"{self.topics_of(stream_id)}/{topic_id}"

    def partitions_of(self, stream_id: int, topic_id: int) -> str:
        return f"{self.topic(stream_id, topic_id)}/{self.partitions}"

    def partition(self, stream_id: int, topic_id: int, partition_id: int) -> str:
        return f"{self.partitions_of(stream_id, topic_id)}/{partition_id}"


def state_flavour(path: str) -> Flavour | None:
    """The flavour of a state log; None for another file."""
    return next((flavour for flavour in Flavour if path.endswith(flavour.state_log_path(""))), None)


def segment_path(directory: str, start_offset: int, suffix: str) -> str:
    return f"{directory}/{start_offset:020d}{suffix}"


def segment_starts(names: Iterable[str]) -> list[int]:
    """The start offsets of the segments in the folder of a partition, in rising order: one for each `.log`."""
    matches = [match for name in names if (match := SEGMENT_FILE.fullmatch(name))]
    return sorted(int(match[1]) for match in matches if match[2] == LOG and not match[3])
