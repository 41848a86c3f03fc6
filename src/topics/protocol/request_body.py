"""Request bodies of the HTTP contract: their shapes, and what makes a body acceptable.

Shapes are structs, declared once: the server decodes with them and the OpenAPI document is made from them.
Unknown members are ignored. A member given twice is refused, but only where the name is ours: payloads are the
writer's business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from topics.errors import InvalidRequest
from topics.limits import U64_MAX
from topics.protocol.json_text import check_depth, check_numbers, check_unicode

U32_MAX: Final = 2**32 - 1

U64 = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": U64_MAX, "format": "uint64"})]
U32 = Annotated[int, Meta(ge=0, le=U32_MAX)]
I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]

S = TypeVar("S", bound=Struct)

_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ConfigBody(Struct, kw_only=True, omit_defaults=True):
    """Settings of a topic. Members left out take their defaults."""

    type: Literal["log", "queue"] = "log"
    ttl_ms: U64 = 0
    cap_records: U64 = 0
    cap_bytes: U64 = 0
    discard: Literal["old", "reject"] = "old"
    durable: bool = False
    durability: Literal["ephemeral", "memory", "disk", "fsync"] | None = None
    priority: I32 | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: U64 = 120_000
    dedupe_node: bool = True
    lease_ms: U64 = 30_000
    claim_jitter_ms: U64 = 0
    max_deliveries: U64 = 0
    dead_letter: str | None = None
    leases_durable: bool = False


class DiffBody(Struct, kw_only=True, omit_defaults=True):
    """A read behind a cursor."""

    from_seq: U64 = 0
    limit: U32 = 256
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: U32 = 0
    max_batch_bytes: U64 = 1_048_576
    group: str | None = None


class ManifestBody(Struct, kw_only=True, omit_defaults=True):
    """Which part of a topic somebody is about to read, and for how long its files shall stay."""

    from_seq: U64 = 0
    to_seq: U64 | None = None
    from_ts: U64 = 0
    to_ts: U64 | None = None
    pin_ms: U64 = 0


class ReplaceBody(Struct, kw_only=True, omit_defaults=True):
    """A segment, and the pair of files that is to take its place."""

    topic_id: U64
    epoch: U64
    first_seq: U64
    expect_digest: str
    data: str
    idx: str


class DeleteBody(Struct, kw_only=True, omit_defaults=True):
    """What to delete for good: records below a seq, records whose tag matches, or both conditions at once."""

    before_seq: U64 | None = None
    match: str | list[msgspec.Raw] | None = None


class ClaimBody(Struct, kw_only=True, omit_defaults=True):
    """Who wants jobs, how many, and for how long."""

    node: str
    max: U32 = 1
    lease_ms: U64 | None = None


class AckBody(Struct, kw_only=True, omit_defaults=True):
    """Jobs that are done."""

    node: str
    seqs: list[U64]
    lease_ids: list[str] = []


class NackBody(AckBody, kw_only=True, omit_defaults=True):
    """Jobs that somebody else may have."""

    delay_ms: U64 = 0


class ExtendBody(AckBody, kw_only=True, omit_defaults=True):
    """Jobs that take longer."""

    lease_ms: U64


class WatchTopic(Struct, kw_only=True, omit_defaults=True):
    """Where to begin with one topic."""

    from_seq: U64 = 0
    tail: bool = False


class WatchBody(Struct, kw_only=True, omit_defaults=True):
    """What to follow, and how."""

    topics: dict[str, WatchTopic]
    node: str | list[str] | None = None
    limit: U32 = 256
    max_batch_bytes: U64 = 262_144
    heartbeat_ms: U64 = 15_000
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    consistency: Literal["eventual", "strong"] = "eventual"


class GroupBody(Struct, kw_only=True, omit_defaults=True, rename={"from_": "from"}):
    """Where a consumer group is to stand."""

    seq: U64 | None = None
    from_: Literal["start", "head"] | None = None


class CommitBody(Struct, kw_only=True, omit_defaults=True):
    """How far a consumer group is done."""

    seq: U64
    rewind: bool = False


class RouterBody(Struct, kw_only=True, omit_defaults=True):
    """What a router copies, from where to where."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: str | list[msgspec.Raw] | None = None
    allow_cycle: bool = False
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once"


class RecordBody(Struct, gc=False):
    """A record to append."""

    data: msgspec.Raw
    tag: str | UnsetType | None = UNSET
    node: str | UnsetType | None = UNSET
    meta: msgspec.Raw | UnsetType = UNSET


class RecordsBody(Struct, kw_only=True):
    """Records, and the node of those that name none."""

    records: list[RecordBody]
    node: str | UnsetType | None = UNSET


class WriteBody(RecordsBody, kw_only=True):
    """Records to append: all of them or none."""

    idempotency_key: str | UnsetType | None = UNSET
    create: bool | UnsetType | None = UNSET
    config: ConfigBody | UnsetType | None = UNSET
    disable_backpressure: bool | UnsetType = UNSET


class StageBody(RecordsBody, kw_only=True):
    """Records to keep until they are committed, and their place in the work of their writer."""

    writer: str
    epoch: U64
    part: U64
    attempt: U64
    chunk: U64


class PartBody(Struct, kw_only=True):
    """What a commit takes of one part of an epoch."""

    part: U64
    attempt: U64
    chunks: U64
    records: U64


class EpochBody(Struct, kw_only=True):
    """Staged records to append: all of them or none, and once."""

    epoch: U64
    topic: str
    parts: list[PartBody]


class AbortBody(Struct, kw_only=True):
    """An epoch that will not be committed."""

    epoch: U64


def malformed(reason: object) -> InvalidRequest:
    return InvalidRequest(f"malformed JSON body: {reason}")


def decoded(decode: Callable[[bytes], S], text: bytes) -> S:
    """The struct in the text, or `InvalidRequest`: syntax, types, and ranges of the struct."""
    try:
        return decode(text)
    except msgspec.DecodeError as error:
        raise malformed(error) from error
    except UnicodeDecodeError as error:
        raise malformed(f"not UTF-8 at byte {error.start}") from error
    except RecursionError:
        raise malformed("nested too deeply") from None


class BodyDecoder:
    """Decodes one kind of small request object, strictly."""

    def __init__(self, shape: type[Struct]) -> None:
        self._decode = msgspec.json.Decoder(shape).decode
        self._names = frozenset(shape.__struct_encode_fields__)
        fields = msgspec.structs.fields(shape)
        self._unsigned = tuple(field.name for field in fields if field.type in (U64, U64 | None))
        self._unsigned_lists = tuple(field.name for field in fields if field.type == list[U64])

    def decode(self, text: bytes) -> Any:
        body = decoded(self._decode, text)
        check_text(text)
        # Two quotes for each member that is there once, and none in a value: then none is there twice.
        if text.count(b'"') != 2 * len(_decode_members(text)):
            check_repeats(pairs_of(text), self._names)
        self.check_ranges(body)
        return body

    def check_ranges(self, body: Struct) -> None:
        """The parser's own bounds end at 63 bits."""
        for name in self._unsigned:
            value = getattr(body, name)
            if value is not None and value > U64_MAX:
                raise malformed(f"{name} is larger than {U64_MAX}")
        for name in self._unsigned_lists:
            if max(getattr(body, name), default=0) > U64_MAX:
                raise malformed(f"one of {name} is larger than {U64_MAX}")


class WatchDecoder(BodyDecoder):
    """Looks into the objects of the topics as well."""

    def __init__(self) -> None:
        super().__init__(WatchBody)

    def decode(self, text: bytes) -> Any:
        body = super().decode(text)
        for name, pairs in pairs_of(text):
            if name == "topics":
                # Which of two starts is meant nobody knows.
                check_repeats(pairs, frozenset(body.topics))
                for _, members in pairs:
                    check_repeats(members, frozenset(WatchTopic.__struct_fields__))
        return body

    def check_ranges(self, body: Struct) -> None:
        super().check_ranges(body)
        assert isinstance(body, WatchBody)
        if any(watched.from_seq > U64_MAX for watched in body.topics.values()):
            raise malformed(f"a from_seq is larger than {U64_MAX}")


class EpochDecoder(BodyDecoder):
    """Looks into the parts as well."""

    def __init__(self) -> None:
        super().__init__(EpochBody)
        self._part = BodyDecoder(PartBody)

    def decode(self, text: bytes) -> Any:
        body = super().decode(text)
        for name, parts in pairs_of(text):
            if name == "parts":
                for members in parts:
                    check_repeats(members, frozenset(PartBody.__struct_fields__))
        return body

    def check_ranges(self, body: Struct) -> None:
        super().check_ranges(body)
        assert isinstance(body, EpochBody)
        for part in body.parts:
            self._part.check_ranges(part)


def check_text(text: bytes) -> None:
    """What holds for every body, beyond its syntax."""
    try:
        check_unicode(text)
        check_depth(text)
        check_numbers(text)
    except InvalidRequest as error:
        raise malformed(error.message) from None


def pairs_of(text: bytes) -> Any:
    """The document with every object as a tuple of its members, those that are repeated included.

    For valid JSON of legal depth. Numbers stay text. A class of our own for objects would take three times as long.
    """
    return json.loads(text, object_pairs_hook=tuple, parse_int=str, parse_float=str)


def check_repeats(pairs: Iterable[tuple[str, Any]], names: frozenset[str]) -> None:
    """Refuses a known member that is given twice."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen and name in names:
            raise malformed(f'member "{name}" is given twice')
        seen.add(name)


CONFIG_DECODER: Final = BodyDecoder(ConfigBody)
DIFF_DECODER: Final = BodyDecoder(DiffBody)
MANIFEST_DECODER: Final = BodyDecoder(ManifestBody)
REPLACE_DECODER: Final = BodyDecoder(ReplaceBody)
DELETE_DECODER: Final = BodyDecoder(DeleteBody)
ROUTER_DECODER: Final = BodyDecoder(RouterBody)
CLAIM_DECODER: Final = BodyDecoder(ClaimBody)
ACK_DECODER: Final = BodyDecoder(AckBody)
NACK_DECODER: Final = BodyDecoder(NackBody)
EXTEND_DECODER: Final = BodyDecoder(ExtendBody)
GROUP_DECODER: Final = BodyDecoder(GroupBody)
COMMIT_DECODER: Final = BodyDecoder(CommitBody)
EPOCH_DECODER: Final = EpochDecoder()
ABORT_DECODER: Final = BodyDecoder(AbortBody)
WATCH_DECODER: Final = WatchDecoder()
