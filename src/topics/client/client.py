"""The calls of the HTTP contract as methods, with the structs of the contract as results.

Bodies with records are bytes in both directions: programs that move millions of records build and read them by columns.
"""

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from topics.client.transport import Answer, Transport, Unreachable
from topics.errors import BadFrame
from topics.protocol.request_body import (
    AbortBody,
    DeleteBody,
    DiffBody,
    EpochBody,
    ManifestBody,
    PartBody,
    ReplaceBody,
)
from topics.protocol.response_body import (
    Appended,
    ChunkStaged,
    Deleted,
    Diff,
    EpochAborted,
    EpochCommitted,
    Health,
    PutTopic,
    SegmentReplaced,
    TopicDeleted,
    TopicList,
    TopicSealed,
    TopicState,
    WriterEpochs,
)

logger = logging.getLogger(__name__)

FRAMES_BYTES_DEFAULT: Final = 8 * 1024 * 1024

T = TypeVar("T")

_encode: Final = msgspec.json.Encoder().encode


class FramesGap(NamedTuple):
    """Seqs of records that are gone, both ends included."""

    first_seq: int
    last_seq: int
    reason: str


class Frames(NamedTuple):
    """Records as segment frames, one after the other. `next_seq` is the seq to continue with."""

    body: bytes
    next_seq: int
    head_seq: int
    epoch: int
    gap: FramesGap | None
    # Number of the topic; 0 if the server does not send it. Together with `epoch` it tells topics of one name apart.
    topic_id: int = 0


class PartOfEpoch(NamedTuple):
    """The attempt at a part that a commit takes."""

    part: int
    attempt: int
    chunks: int
    records: int


class Client:
    """One server. Safe to use from several threads.

    `retries` counts tries after the first. `throttle_wait_s` is for writers: for that time a call that the server
    throttles is repeated, without a limit of tries.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        retries: int = 5,
        throttle_wait_s: float = 0.0,
    ) -> None:
        self._transport = Transport(
            endpoint, token=token, timeout_s=timeout_s, retries=retries, throttle_wait_s=throttle_wait_s
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    @property
    def endpoint(self) -> str:
        return self._transport.endpoint

    def health(self) -> Health:
        return self._read("GET", "/v0/health", None, Health)

    # Topics.

    def topic_names(self, prefix: str = "") -> list[str]:
        """All names that begin with the prefix, ascending."""
        names: list[str] = []
        query = {"prefix": prefix, "page_size": "1000"}
        while True:
            page = self._read("GET", f"/v0/topics?{urlencode(query)}", None, TopicList)
            names += [entry.topic for entry in page.topics]
            if page.next_cursor is msgspec.UNSET:
                return names
            query["cursor"] = page.next_cursor

    def topic(self, topic: str) -> TopicState:
        return self._read("GET", _path(topic), None, TopicState)

    def put_topic(self, topic: str, config: Mapping[str, object] | None = None) -> PutTopic:
        """Creates the topic, or replaces its config. The server's warnings about the config are logged."""
        answer = self._read("PUT", _path(topic), _encode(config or {}), PutTopic)
        if answer.warnings is not msgspec.UNSET:
            for warning in answer.warnings:
                logger.warning('config of topic "%s": %s', topic, warning)
        return answer

    def delete_topic(self, topic: str) -> bool:
        """Returns whether the topic existed. After a lost answer the repeated call returns False."""
        return self._read("DELETE", _path(topic), None, TopicDeleted).deleted

    # Records.

    def append(self, topic: str, records: bytes, *, idempotency_key: str | None = None) -> Appended:
        """Writes a JSON array of records. Without a key the call is not repeated when the answer is lost."""
        members = b'{"records":' + records
        if idempotency_key is not None:
            members += b',"idempotency_key":' + _encode(idempotency_key)
        target = f"{_path(topic)}?return_seqs=false"
        return self._read("POST", target, members + b"}", Appended, is_repeatable=idempotency_key is not None)

    def diff(self, topic: str, from_seq: int, limit: int = 1000) -> Diff:
        """Records after the cursor, with tags and metas."""
        wanted = DiffBody(from_seq=from_seq, limit=limit, include_tags=True)
        return self._read("POST", f"{_path(topic)}/diff", _encode(wanted), Diff)

    def delete_below(self, topic: str, before_seq: int) -> Deleted:
        return self._read("POST", f"{_path(topic)}/delete", _encode(DeleteBody(before_seq=before_seq)), Deleted)

    # Files.

    def manifest(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        to_seq: int | None = None,
        from_ts: int = 0,
        to_ts: int | None = None,
        pin_ms: int = 0,
    ) -> bytes:
        """The manifest of a topic's files as JSON text: readers of files decode it into a type of their own."""
        wanted = ManifestBody(from_seq=from_seq, to_seq=to_seq, from_ts=from_ts, to_ts=to_ts, pin_ms=pin_ms)
        return self._transport.ask("POST", f"{_path(topic)}/manifest", _encode(wanted)).body

    def frames(self, topic: str, first_seq: int, last_seq: int, max_bytes: int = FRAMES_BYTES_DEFAULT) -> Frames:
        """Records from `first_seq` to `last_seq`. The answer may end earlier."""
        query = urlencode({"from_seq": first_seq, "to_seq": last_seq, "max_bytes": max_bytes})
        answer = self._transport.ask("GET", f"{_path(topic)}/frames?{query}")
        return _frames(answer)

    def replace_segment(
        self, *, topic_id: int, epoch: int, first_seq: int, expect_digest: str, data: str, idx: str
    ) -> SegmentReplaced:
        """Replaces the files of a segment by the files with these names in the folder `staging`."""
        body = ReplaceBody(
            topic_id=topic_id, epoch=epoch, first_seq=first_seq, expect_digest=expect_digest, data=data, idx=idx
        )
        return self._read("POST", "/v0/admin/segments/replace", _encode(body), SegmentReplaced, is_repeatable=False)

    def seal(self, topic: str) -> TopicSealed:
        """Puts all records that are written so far into sealed segments."""
        return self._read("POST", f"{_path(topic)}/seal", None, TopicSealed)

    # Staged writes.

    def stage(self, topic: str, body: bytes) -> ChunkStaged:
        """Stages a chunk. `body` is the JSON text of the contract's body."""
        return self._read("POST", f"{_path(topic)}/stage", body, ChunkStaged)

    def commit(self, writer: str, epoch: int, topic: str, parts: Sequence[PartOfEpoch]) -> EpochCommitted:
        body = EpochBody(epoch=epoch, topic=topic, parts=[PartBody(**part._asdict()) for part in parts])
        return self._read("POST", f"{_writer_path(writer)}/commit", _encode(body), EpochCommitted)

    def writer(self, writer: str) -> WriterEpochs:
        return self._read("GET", _writer_path(writer), None, WriterEpochs)

    def abort(self, writer: str, epoch: int) -> EpochAborted:
        return self._read("POST", f"{_writer_path(writer)}/abort", _encode(AbortBody(epoch=epoch)), EpochAborted)

    def _read(self, method: str, target: str, body: bytes | None, wanted: type[T], *, is_repeatable: bool = True) -> T:
        answer = self._transport.ask(method, target, body, is_repeatable=is_repeatable)
        try:
            return msgspec.json.decode(answer.body, type=wanted)
        except msgspec.DecodeError as error:
            text = answer.body[:200].decode(errors="replace")
            raise Unreachable(f"{self.endpoint} is not a server of topics: {error}: {text}") from error


def _path(topic: str) -> str:
    return f"/v0/topics/{quote(topic, safe='')}"


def _writer_path(writer: str) -> str:
    return f"/v0/writers/{quote(writer, safe='')}"


def _frames(answer: Answer) -> Frames:
    headers = answer.headers
    try:
        gap = _gap(headers["topics-gap"]) if "topics-gap" in headers else None
        return Frames(
            answer.body,
            int(headers["topics-next-seq"]),
            int(headers["topics-head-seq"]),
            int(headers["topics-epoch"]),
            gap,
            int(headers.get("topics-id", "0")),
        )
    except (KeyError, ValueError) as error:
        raise BadFrame(f"the answer has no frames of segments: {error!r}") from error


def _gap(text: str) -> FramesGap:
    seqs, reason = text.split(";", 1)
    first_seq, last_seq = seqs.split("-", 1)
    return FramesGap(int(first_seq), int(last_seq), reason)
