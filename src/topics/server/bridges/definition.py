"""What a bridge connects, and how far it has copied. Pure.

One end of a bridge is a topic of the log. The other end is a topic of a stream, written `stream:orders/events` with
names or numbers. No topic of the log can have such a name, because it has a slash.
"""

from typing import Final, Literal, NamedTuple

import msgspec

from topics.engine.names import check_topic_name
from topics.errors import InvalidRequest
from topics.protocol.request_body import RouterBody
from topics.protocol.tag_match import TagMatch

STREAM_PREFIX: Final = "stream:"
Guarantee = Literal["at_least_once", "exactly_once"]


class StreamPlace(NamedTuple):
    """A topic of a stream, each by name or by number."""

    stream: int | str
    topic: int | str


class BridgeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Source and dest as the caller wrote them. `tag` is the filter of a bridge into a stream."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    tag: str | None = None
    tag_is_prefix: bool = False

    @property
    def is_from_stream(self) -> bool:
        return is_stream(self.source)

    @property
    def topic_name(self) -> str:
        """The end in the log."""
        return self.dest if self.is_from_stream else self.source

    @property
    def place(self) -> StreamPlace:
        return place_of(self.source if self.is_from_stream else self.dest)

    @property
    def names(self) -> tuple[str, str]:
        """The names that a key must be for: those of the topic and of the stream. A stream that is given by its number
        is no name of any key with prefixes."""
        stream = self.place.stream
        return self.topic_name, stream if isinstance(stream, str) else f"{STREAM_PREFIX}{stream}"

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once" if self.is_from_stream else "at_least_once"

    def matches(self, tag: str | None) -> bool:
        """Whether records with this tag are copied."""
        if self.tag is None:
            return True
        return tag is not None and (tag.startswith(self.tag) if self.tag_is_prefix else tag == self.tag)


class StreamPosition(msgspec.Struct, frozen=True):
    """How far a bridge has read the topic of a stream that was created at this time: the next offset of each
    partition. `lost_total` counts messages that retention removed before they were copied."""

    created_at: int
    next_offsets: list[int]
    copied_total: int = 0
    lost_total: int = 0

    def after(self, partition_id: int, next_offset: int, *, copied: int, lost: int) -> "StreamPosition":
        next_offsets = list(self.next_offsets)
        next_offsets[partition_id] = next_offset
        return StreamPosition(self.created_at, next_offsets, self.copied_total + copied, self.lost_total + lost)


class TopicPosition(msgspec.Struct, frozen=True):
    """How far a bridge has read a topic of the log. `lost_total` counts seqs that retention removed before."""

    seq: int
    copied_total: int = 0
    lost_total: int = 0


def is_stream(end: str) -> bool:
    return end.startswith(STREAM_PREFIX)


def is_bridge(body: RouterBody) -> bool:
    return is_stream(body.source) or is_stream(body.dest)


def place_of(end: str) -> StreamPlace:
    stream, slash, topic = end.removeprefix(STREAM_PREFIX).partition("/")
    if not slash or not stream or not topic or "/" in topic:
        raise InvalidRequest(f"{end!r} is not a topic of a stream: write stream:STREAM/TOPIC, with names or numbers")
    return StreamPlace(_identifier(stream), _identifier(topic))


def _identifier(text: str) -> int | str:
    """Clients of Apache Iggy read a name of digits as a number, too."""
    return int(text) if text.isascii() and text.isdigit() and int(text) < 2**32 else text


def spec_of(body: RouterBody) -> BridgeSpec:
    """The bridge that a request asks for. Raises `InvalidRequest` for what a bridge cannot do."""
    if is_stream(body.source) and is_stream(body.dest):
        raise InvalidRequest("one end of a router must be a topic of the log, not of a stream")
    if body.allow_cycle:
        raise InvalidRequest("a router to or from a stream cannot close a cycle: messages do not count their copies")
    tag = None if body.filter is None else TagMatch.parse(body.filter)
    spec = BridgeSpec(
        body.source,
        body.dest,
        preserve_node=body.preserve_node,
        preserve_tag=body.preserve_tag,
        tag=None if tag is None else tag.text,
        tag_is_prefix=tag is not None and tag.is_prefix,
    )
    check_topic_name(spec.topic_name)
    if spec.is_from_stream and tag is not None:
        raise InvalidRequest("a router from a stream has no filter: messages have no tags")
    if not spec.is_from_stream and body.guarantee == "exactly_once":
        raise InvalidRequest("a router into a stream copies at least once: leave `guarantee` out")
    # Also for its errors: a name that is no place.
    place_of(body.source if spec.is_from_stream else body.dest)
    return spec


def encode(value: BridgeSpec | StreamPosition | TopicPosition) -> bytes:
    return msgspec.json.encode(value)


decode_spec: Final = msgspec.json.Decoder(BridgeSpec).decode
decode_stream_position: Final = msgspec.json.Decoder(StreamPosition).decode
decode_topic_position: Final = msgspec.json.Decoder(TopicPosition).decode
