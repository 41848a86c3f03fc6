"""Every operation of the HTTP contract as a value: what to send, how to read the answer, whether it may be sent twice.

Pure: the shells send a `Call` and give its `decode` the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

import msgspec

from topics.client import answers
from topics.client.answers import Answer, Frames, Page, StreamPage, decoded, list_page, stream_page
from topics.client.http1 import ANSWER_BYTES_MAX, PICTURE_BYTES_MAX
from topics.errors import InvalidRequest
from topics.limits import MIB, READ_LIMIT_MAX
from topics.protocol import request_body as body
from topics.protocol import response_body as wire
from topics.protocol import stream_body
from topics.protocol.job_text import lease_token
from topics.protocol.payload_text import payload_text
from topics.results import Extended, GroupChanged, GroupCursor, Job, NewRecord, Settled, Start

T = TypeVar("T")

FRAMES_BYTES_DEFAULT: Final = 8 * 1024 * 1024
LIST_PAGE_SIZE: Final = 1000
STREAM_PAGE_BYTES_DEFAULT: Final = MIB

Guarantee = Literal["at_least_once", "exactly_once"]

encode: Final = msgspec.json.Encoder().encode


class Call(NamedTuple, Generic[T]):
    """A request, and what its answer means. `wait_ms` is how long the server may hold the answer back. One with more
    than `answer_bytes_max` bytes is refused."""

    method: str
    target: str
    body: bytes | None
    decode: Callable[[Answer], T]
    is_repeatable: bool = True
    wait_ms: int = 0
    answer_bytes_max: int = ANSWER_BYTES_MAX


class PartOfEpoch(NamedTuple):
    """The attempt at a part that a commit takes."""

    part: int
    attempt: int
    chunks: int
    records: int


def topic_path(topic: str) -> str:
    return f"/v0/topics/{quote(topic, safe='')}"


def _router(router: str) -> str:
    return f"/v0/routers/{quote(router, safe='')}"


def _group(topic: str, group: str) -> str:
    return f"{topic_path(topic)}/groups/{quote(group, safe='')}"


def _writer(writer: str) -> str:
    return f"/v0/writers/{quote(writer, safe='')}"


def _query(target: str, **parameters: str | int | None) -> str:
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{target}?{urlencode(given)}" if given else target


# Topics.


def put_topic(topic: str, config: Mapping[str, object]) -> Call[wire.PutTopic]:
    return Call("PUT", topic_path(topic), encode(config), decoded(wire.PutTopic))


def delete_topic(topic: str, *, if_empty: bool) -> Call[wire.TopicDeleted]:
    target = _query(topic_path(topic), if_empty="true" if if_empty else None)
    return Call("DELETE", target, None, decoded(wire.TopicDeleted))


def get_topic(topic: str) -> Call[wire.TopicState]:
    return Call("GET", topic_path(topic), None, decoded(wire.TopicState))


def list_topics(prefix: str, cursor: str | None) -> Call[wire.TopicList]:
    target = _query("/v0/topics", prefix=prefix, page_size=LIST_PAGE_SIZE, cursor=cursor)
    return Call("GET", target, None, list_page(wire.TopicList, cursor))


# Records.


def records_text(payloads: Sequence[Any]) -> bytes:
    """The payloads of a caller as the JSON array of records of a write."""
    if isinstance(payloads, str | bytes | Mapping):
        # Without this check each character, or each key, would become a record.
        raise InvalidRequest("a write is a list of payloads: put a single payload into a list")
    return encode([_record(one if type(one) is NewRecord else NewRecord(one)) for one in payloads])


def _record(given: NewRecord) -> body.RecordBody:
    return body.RecordBody(
        data=msgspec.Raw(payload_text(given.data)),
        tag=msgspec.UNSET if given.tag is None else given.tag,
        node=msgspec.UNSET if given.node is None else given.node,
        meta=msgspec.UNSET if given.meta is None else msgspec.Raw(payload_text(given.meta)),
    )


def append(topic: str, records: bytes, key: str | None, *, create: bool) -> Call[wire.Appended]:
    """A write of the JSON array `records`. Without a key it gets a random one, so that a repeat adds nothing."""
    members = b'{"idempotency_key":' + encode(uuid4().hex if key is None else key)
    if not create:
        members += b',"create":false'
    target = f"{topic_path(topic)}?return_seqs=false"
    return Call("POST", target, members + b',"records":' + records + b"}", decoded(wire.Appended))


def diff(
    topic: str,
    from_seq: int,
    *,
    limit: int,
    bytes_max: int,
    skip_nodes: Iterable[str],
    group: str | None,
    wait_ms: int,
) -> Call[Page]:
    wanted = body.DiffBody(
        from_seq=from_seq,
        limit=limit,
        node=nodes_of(skip_nodes),
        include_tags=True,
        wait_ms=wait_ms,
        max_batch_bytes=bytes_max,
        group=group,
    )
    return Call(
        "POST",
        f"{topic_path(topic)}/diff",
        encode(wanted),
        partial(answers.page_of, from_seq=from_seq),
        wait_ms=wait_ms,
    )


def nodes_of(skip_nodes: Iterable[str]) -> list[str] | None:
    if isinstance(skip_nodes, str):
        raise InvalidRequest("skip_nodes is a list of nodes: put a single node into a list")
    return list(skip_nodes) or None


def delete(topic: str, before_seq: int | None, tag: str | None, tag_prefix: str | None) -> Call[wire.Deleted]:
    wanted = body.DeleteBody(before_seq=before_seq, match=tag_match(tag, tag_prefix))
    return Call("POST", f"{topic_path(topic)}/delete", encode(wanted), decoded(wire.Deleted))


def tag_match(tag: str | None, tag_prefix: str | None) -> list[msgspec.Raw] | None:
    if tag is not None and tag_prefix is not None:
        raise InvalidRequest("a record has a tag or begins with a tag_prefix: give one of them")
    if tag is not None:
        return [msgspec.Raw(b'"tag"'), msgspec.Raw(b'"Eq"'), msgspec.Raw(encode(tag))]
    if tag_prefix is not None:
        return [msgspec.Raw(b'"tag"'), msgspec.Raw(b'"Glob"'), msgspec.Raw(encode(f"{tag_prefix}*"))]
    return None


# Queues.


def claim(topic: str, node: str, *, max_jobs: int, lease_ms: int | None, wait_ms: int) -> Call[list[Job]]:
    if max_jobs < 1:
        raise InvalidRequest("max_jobs is at least 1")
    wanted = body.ClaimBody(node=node, max=max_jobs, lease_ms=lease_ms, wait_ms=wait_ms)
    return Call("POST", f"{topic_path(topic)}/claim", encode(wanted), answers.jobs_of, wait_ms=wait_ms)


def _named(jobs: Iterable[Job | int]) -> tuple[list[int], list[str]]:
    """(seqs, lease ids). A job means the lease that it came with, a seq any lease of the node."""
    named = list(jobs)
    seqs = [job.seq if isinstance(job, Job) else job for job in named]
    return seqs, [lease_token(job.lease_id) if isinstance(job, Job) else "" for job in named]


def ack(topic: str, node: str, jobs: Iterable[Job | int]) -> Call[Settled]:
    seqs, lease_ids = _named(jobs)
    wanted = body.AckBody(node=node, seqs=seqs, lease_ids=lease_ids)
    return Call("POST", f"{topic_path(topic)}/ack", encode(wanted), answers.acked_of)


def nack(topic: str, node: str, jobs: Iterable[Job | int], delay_ms: int, reason: str) -> Call[Settled]:
    seqs, lease_ids = _named(jobs)
    members: dict[str, object] = {"node": node, "seqs": seqs, "lease_ids": lease_ids, "delay_ms": delay_ms}
    if reason:
        members["reason"] = reason
    return Call("POST", f"{topic_path(topic)}/nack", encode(members), answers.nacked_of)


def extend(topic: str, node: str, jobs: Iterable[Job | int], lease_ms: int) -> Call[Extended]:
    seqs, lease_ids = _named(jobs)
    wanted = body.ExtendBody(node=node, seqs=seqs, lease_ids=lease_ids, lease_ms=lease_ms)
    return Call("POST", f"{topic_path(topic)}/extend", encode(wanted), answers.extended_of)


def work_target(topic: str, node: str, *, max_jobs: int, lease_ms: int | None) -> str:
    return _query(f"{topic_path(topic)}/work", node=node, max=max_jobs, lease_ms=lease_ms)


def get_queue(topic: str, cursor: str | None) -> Call[wire.QueueState]:
    target = _query(f"{topic_path(topic)}/queue", page_size=LIST_PAGE_SIZE, cursor=cursor)
    return Call("GET", target, None, list_page(wire.QueueState, cursor))


# Consumer groups.


def put_group(topic: str, group: str, at: int | Start | None) -> Call[GroupChanged]:
    wanted = body.GroupBody(seq=at if isinstance(at, int) else None, from_=at if isinstance(at, str) else None)

    def decode(answer: Answer) -> GroupChanged:
        sent = answers.from_json(answer.body, wire.PutGroup)
        return GroupChanged(answers.cursor_of(sent), sent.created, sent.created or at is not None)

    return Call("PUT", _group(topic, group), encode(wanted), decode)


def get_group(topic: str, group: str) -> Call[GroupCursor]:
    return Call("GET", _group(topic, group), None, answers.group_of)


def list_groups(topic: str) -> Call[list[GroupCursor]]:
    return Call("GET", f"{topic_path(topic)}/groups", None, answers.groups_of)


def commit_group(topic: str, group: str, seq: int, *, rewind: bool) -> Call[GroupChanged]:
    wanted = body.CommitBody(seq=seq, rewind=rewind)
    return Call("POST", f"{_group(topic, group)}/commit", encode(wanted), answers.committed_of)


def delete_group(topic: str, group: str) -> Call[wire.GroupDeleted]:
    return Call("DELETE", _group(topic, group), None, decoded(wire.GroupDeleted))


# Routers.


def put_router(
    router: str,
    source: str,
    dest: str,
    *,
    tag: str | None,
    tag_prefix: str | None,
    preserve_node: bool,
    preserve_tag: bool,
    allow_cycle: bool,
    guarantee: Guarantee,
    create_dest: bool,
) -> Call[wire.PutRouter]:
    wanted = body.RouterBody(
        source=source,
        dest=dest,
        preserve_node=preserve_node,
        preserve_tag=preserve_tag,
        create_dest=create_dest,
        filter=tag_match(tag, tag_prefix),
        allow_cycle=allow_cycle,
        guarantee=guarantee,
    )
    return Call("PUT", _router(router), encode(wanted), decoded(wire.PutRouter))


def get_router(router: str) -> Call[wire.Router]:
    return Call("GET", _router(router), None, decoded(wire.Router))


def list_routers(prefix: str, source: str | None, dest: str | None, cursor: str | None) -> Call[wire.RouterList]:
    target = _query("/v0/routers", prefix=prefix, source=source, dest=dest, page_size=LIST_PAGE_SIZE, cursor=cursor)
    return Call("GET", target, None, list_page(wire.RouterList, cursor))


def delete_router(router: str) -> Call[wire.RouterDeleted]:
    return Call("DELETE", _router(router), None, decoded(wire.RouterDeleted))


# Watching.


def watch(wanted: body.WatchBody, *, is_lenient: bool) -> Call[wire.WatchCreated]:
    target = _query("/v0/watch", lenient="true" if is_lenient else None)
    return Call("POST", target, encode(wanted), decoded(wire.WatchCreated))


# Files.


def manifest(
    topic: str, *, from_seq: int, to_seq: int | None, from_ts: int, to_ts: int | None, pin_ms: int
) -> Call[bytes]:
    wanted = body.ManifestBody(from_seq=from_seq, to_seq=to_seq, from_ts=from_ts, to_ts=to_ts, pin_ms=pin_ms)
    target = f"{topic_path(topic)}/manifest"
    return Call("POST", target, encode(wanted), _body_of, answer_bytes_max=PICTURE_BYTES_MAX)


def capture(*, pin_ms: int) -> Call[wire.LogCapture]:
    wanted = encode(body.CaptureBody(pin_ms=pin_ms))
    return Call("POST", "/v0/admin/capture", wanted, decoded(wire.LogCapture), answer_bytes_max=PICTURE_BYTES_MAX)


def _body_of(answer: Answer) -> bytes:
    return answer.body


def frames(topic: str, first_seq: int, last_seq: int, max_bytes: int) -> Call[Frames]:
    target = _query(f"{topic_path(topic)}/frames", from_seq=first_seq, to_seq=last_seq, max_bytes=max_bytes)
    return Call("GET", target, None, answers.frames_of)


def replace_segment(
    *, topic_id: int, epoch: int, first_seq: int, expect_digest: str, data: str, idx: str
) -> Call[wire.SegmentReplaced]:
    wanted = body.ReplaceBody(
        topic_id=topic_id, epoch=epoch, first_seq=first_seq, expect_digest=expect_digest, data=data, idx=idx
    )
    # A repeat would not find the segment with the old digest.
    return Call(
        "POST", "/v0/admin/segments/replace", encode(wanted), decoded(wire.SegmentReplaced), is_repeatable=False
    )


def seal(topic: str) -> Call[wire.TopicSealed]:
    return Call("POST", f"{topic_path(topic)}/seal", None, decoded(wire.TopicSealed))


# Streams.


def list_streams(prefix: str, cursor: str | None) -> Call[stream_body.StreamList]:
    target = _query("/v0/streams", prefix=prefix, page_size=LIST_PAGE_SIZE, cursor=cursor)
    return Call("GET", target, None, list_page(stream_body.StreamList, cursor))


def get_stream(stream: str | int) -> Call[stream_body.StreamState]:
    return Call("GET", _stream(stream), None, decoded(stream_body.StreamState))


def get_stream_topic(stream: str | int, topic: str | int) -> Call[stream_body.StreamTopicState]:
    return Call("GET", _stream_topic(stream, topic), None, decoded(stream_body.StreamTopicState))


def get_stream_partition(stream: str | int, topic: str | int, partition: int) -> Call[stream_body.StreamPartitionState]:
    target = f"{_stream_topic(stream, topic)}/partitions/{partition}"
    return Call("GET", target, None, decoded(stream_body.StreamPartitionState))


def get_stream_messages(
    stream: str | int, topic: str | int, partition: int, *, offset: int | None, timestamp_us: int | None, count: int
) -> Call[stream_body.StreamMessages]:
    target = _query(
        f"{_stream_topic(stream, topic)}/partitions/{partition}/messages",
        offset=offset,
        timestamp=timestamp_us,
        count=count,
    )
    return Call("GET", target, None, decoded(stream_body.StreamMessages))


def read_stream(
    stream: str | int, topic: str | int, partition: int, offset: int | None, timestamp_us: int | None, page_bytes: int
) -> Call[StreamPage]:
    target = _query(
        f"{_stream_topic(stream, topic)}/partitions/{partition}/messages",
        offset=offset,
        timestamp=timestamp_us,
        count=READ_LIMIT_MAX,
        max_bytes=page_bytes,
    )
    return Call("GET", target, None, stream_page)


def _stream(stream: str | int) -> str:
    return f"/v0/streams/{quote(str(stream), safe='')}"


def _stream_topic(stream: str | int, topic: str | int) -> str:
    return f"{_stream(stream)}/topics/{quote(str(topic), safe='')}"


# Staged writes.


def stage(topic: str, chunk: bytes) -> Call[wire.ChunkStaged]:
    return Call("POST", f"{topic_path(topic)}/stage", chunk, decoded(wire.ChunkStaged))


def commit_epoch(writer: str, epoch: int, topic: str, parts: Sequence[PartOfEpoch]) -> Call[wire.EpochCommitted]:
    wanted = body.EpochBody(epoch=epoch, topic=topic, parts=[body.PartBody(**part._asdict()) for part in parts])
    return Call("POST", f"{_writer(writer)}/commit", encode(wanted), decoded(wire.EpochCommitted))


def get_writer(writer: str) -> Call[wire.WriterEpochs]:
    return Call("GET", _writer(writer), None, decoded(wire.WriterEpochs))


def abort_epoch(writer: str, epoch: int) -> Call[wire.EpochAborted]:
    wanted = body.AbortBody(epoch=epoch)
    return Call("POST", f"{_writer(writer)}/abort", encode(wanted), decoded(wire.EpochAborted))


# Operations.


def health() -> Call[wire.Health]:
    return Call("GET", "/v0/health", None, decoded(wire.Health))


def ready() -> Call[wire.Ready]:
    return Call("GET", "/v0/ready", None, decoded(wire.Ready))


def access() -> Call[wire.AccessRights]:
    return Call("GET", "/v0/access", None, decoded(wire.AccessRights))


def metrics() -> Call[str]:
    return Call("GET", "/v0/metrics", None, lambda answer: answer.body.decode())


def get_config() -> Call[wire.ServerConfig]:
    return Call("GET", "/v0/admin/config", None, decoded(wire.ServerConfig))


def asyncapi() -> Call[dict[str, Any]]:
    return Call("GET", "/v0/asyncapi.json", None, decoded(dict[str, Any]))


def openapi() -> Call[dict[str, Any]]:
    return Call("GET", "/v0/openapi.json", None, decoded(dict[str, Any]))
