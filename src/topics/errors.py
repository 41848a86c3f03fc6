"""The error tree. Catch `TopicsError`, or a leaf.

TopicsError
├── InvalidRequest            400 invalid_request
├── BatchTooLarge             400 batch_too_large
├── RecordTooLarge            400 record_too_large
├── Unauthorized              401 unauthorized
├── Forbidden                 403 forbidden
├── TopicNotFound             404 topic_not_found
├── RouterNotFound            404 router_not_found
├── GroupNotFound             404 group_not_found
├── NotFound                  404 not_found
├── MethodNotAllowed          405 method_not_allowed
├── NotAcceptable             406 not_acceptable
├── RequestTimeout            408 request_timeout         worth a retry
├── TopicExistsIncompatible   409 topic_exists_incompatible
├── TopicNotEmpty             409 topic_not_empty
├── RouterCycle               409 router_cycle
├── NotAQueue                 409 not_a_queue
├── NoDeadLetter              409 no_dead_letter
├── StageIncomplete           409 stage_incomplete
├── SegmentChanged            409 segment_changed
├── SegmentBusy               409 segment_busy            worth a retry
├── PayloadTooLarge           413 payload_too_large
├── UriTooLong                414 uri_too_long
├── UnsupportedMediaType      415 unsupported_media_type
├── TopicFull                 422 topic_full
├── Throttled                 429 throttled               worth a retry
│   └── Overloaded            writes come faster than the log takes them
├── HeadersTooLarge           431 headers_too_large
├── CorruptRecord             500 corrupt_record
├── WalFailed                 503 wal_failed              until a restart
├── StorageFull               503 storage_full            worth a retry
├── ColdUnavailable           503 cold_unavailable        worth a retry
├── NotReady                  503 not_ready               worth a retry
├── Closed                    503 shutting_down           worth a retry after the restart
├── RecordsLost               a reader asked for records that are gone (embedded log, `loss="raise"`)
├── BadPayload                a record's payload is not of the type that its reader asked for
├── StartRefused              the data directory cannot be served as it is
│   ├── SettingsError         settings that cannot be used: which ones, and the allowed values
│   ├── DirectoryLocked       another process holds it
│   ├── Damaged               bytes that were durable are bad: file, offset, expected, found
│   └── FutureVersion         written by a newer version
└── FormatError               bytes that are not what they should be (raised by `formats/`)
    ├── Torn                  the bytes end too early
    └── BadFrame              lengths, magic or checksum are wrong
"""

from collections.abc import Mapping
from typing import Any, ClassVar

Detail = Mapping[str, object]


class TopicsError(Exception):
    """Base of everything this package raises on purpose.

    `code` and `status` are the ones of the HTTP contract. `detail` is data that a client may decide by. `retriable`
    says whether the same call can succeed later without a change by a user or an operator.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, detail: Detail | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        # By default a pickle calls the class with the message. Most of these classes take other arguments.
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[TopicsError], args: tuple[object, ...], members: dict[str, object]) -> TopicsError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(members)
    return error


class InvalidRequest(TopicsError):
    """Syntax, types or rules: the message says what is wrong. Nothing was changed."""

    code = "invalid_request"
    status = 400


class BatchTooLarge(TopicsError):
    """More records in one write, or seqs in one call, than the server takes."""

    code = "batch_too_large"
    status = 400


class RecordTooLarge(TopicsError):
    """A record is too large, or the write is larger than the whole cap of its `reject` topic."""

    code = "record_too_large"
    status = 400


class Unauthorized(TopicsError):
    """No key, or one that is not known."""

    code = "unauthorized"
    status = 401


class Forbidden(TopicsError):
    """The key lacks the scope or is not for this name; or the page that sent the request has another origin or Host."""

    code = "forbidden"
    status = 403


class TopicNotFound(TopicsError):
    """There is no such topic."""

    code = "topic_not_found"
    status = 404

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" does not exist', {"topic": topic})


class RouterNotFound(TopicsError):
    """There is no such router."""

    code = "router_not_found"
    status = 404

    def __init__(self, router: str) -> None:
        super().__init__(f'router "{router}" does not exist', {"router": router})


class GroupNotFound(TopicsError):
    """The topic has no such consumer group."""

    code = "group_not_found"
    status = 404

    def __init__(self, topic: str, group: str) -> None:
        super().__init__(f'topic "{topic}" has no group "{group}"', {"topic": topic, "group": group})


class NotFound(TopicsError):
    """There is nothing at this path."""

    code = "not_found"
    status = 404


class MethodNotAllowed(TopicsError):
    """The path is there, for other methods: the header `Allow` names them."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class NotAcceptable(TopicsError):
    """A stream is `text/event-stream`, and the header `Accept` rules that out."""

    code = "not_acceptable"
    status = 406


class RequestTimeout(TopicsError):
    """The request came too slowly; the connection is closed."""

    code = "request_timeout"
    status = 408
    retriable = True


class TopicExistsIncompatible(TopicsError):
    """The topic is there, with another type or another source; or the router is, with other endpoints."""

    code = "topic_exists_incompatible"
    status = 409


class TopicNotEmpty(TopicsError):
    """A topic that was to be deleted only if empty has live records."""

    code = "topic_not_empty"
    status = 409


class RouterCycle(TopicsError):
    """The router would close a directed cycle, and `allow_cycle` is not set."""

    code = "router_cycle"
    status = 409

    def __init__(self, cycle: list[str]) -> None:
        super().__init__(f"the router would close a cycle: {' -> '.join(cycle)}", {"cycle": cycle})


class NotAQueue(TopicsError):
    """Jobs can be claimed from topics of type `queue` only."""

    code = "not_a_queue"
    status = 409

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" is not a queue', {"topic": topic})


class NoDeadLetter(TopicsError):
    """The queue has no dead-letter topic: set `dead_letter`, or say in `to` where its jobs go."""

    code = "no_dead_letter"
    status = 409

    def __init__(self, topic: str) -> None:
        super().__init__(
            f'queue "{topic}" has no dead_letter: set one, or name the queue that its jobs go to in `to`',
            {"topic": topic},
        )


class StageIncomplete(TopicsError):
    """A commit names staged records that are not all there: stage the part again, then commit again."""

    code = "stage_incomplete"
    status = 409


class SegmentChanged(TopicsError):
    """The segment is not, or not any more, the sealed one in the hot tier that was expected: take a new manifest."""

    code = "segment_changed"
    status = 409


class SegmentBusy(TopicsError):
    """The segment is pinned, or being moved or replaced: it cannot be replaced now."""

    code = "segment_busy"
    status = 409
    retriable = True


class PayloadTooLarge(TopicsError):
    """The body is too large: 64 MiB for writes and staged records, 1 MiB elsewhere."""

    code = "payload_too_large"
    status = 413


class UriTooLong(TopicsError):
    """The request target is too long."""

    code = "uri_too_long"
    status = 414


class UnsupportedMediaType(TopicsError):
    """A body is `application/json`, plain or with gzip."""

    code = "unsupported_media_type"
    status = 415


class TopicFull(TopicsError):
    """A `reject` topic has no room for the write."""

    code = "topic_full"
    status = 422


class Throttled(TopicsError):
    """A cap is reached, or too much is under way: come back after `Retry-After` seconds."""

    code = "throttled"
    status = 429
    retriable = True


class Overloaded(Throttled):
    """Writes come faster than the log takes them: the same write can be taken a moment later."""


class HeadersTooLarge(TopicsError):
    """Too many headers, or too long ones; the connection is closed."""

    code = "headers_too_large"
    status = 431


class CorruptRecord(TopicsError):
    """A stored record failed its checksum. Its neighbours stay readable."""

    code = "corrupt_record"
    status = 500

    def __init__(self, topic: str, seq: int, where: str) -> None:
        super().__init__(
            f'record {seq} of topic "{topic}" is damaged ({where}); '
            f"read on with from_seq={seq}, and run `topics verify` on the data directory",
            {"topic": topic, "seq": seq},
        )
        self.seq = seq


class WalFailed(TopicsError):
    """A WAL write or sync failed: the shard takes no writes until a restart."""

    code = "wal_failed"
    status = 503

    def __init__(self, shard: int, reason: str) -> None:
        super().__init__(
            f"WAL shard {shard} is read-only after a failed {reason}; check the disk, then restart",
            {"shard": shard},
        )


class StorageFull(TopicsError):
    """No space or no file descriptors left. Nothing was written."""

    code = "storage_full"
    status = 503
    retriable = True

    def __init__(self, message: str = "no space or no file descriptors left; nothing was written") -> None:
        super().__init__(message)


class ColdUnavailable(TopicsError):
    """The tier or file of the records does not answer, or too many calls wait. A delete answered so deleted nothing."""

    code = "cold_unavailable"
    status = 503
    retriable = True


class ColdBusy(ColdUnavailable):
    """No thread for the cold tier was free for the call, or the call did not end in time."""


class NotFetched(ColdUnavailable):
    """Bytes of the cold tier are not in memory: they must be fetched first, then the call can be tried again."""


class NotReady(TopicsError):
    """The log is being recovered."""

    code = "not_ready"
    status = 503
    retriable = True

    def __init__(self, replay_progress: float) -> None:
        super().__init__("the log is being recovered", {"replay_progress": replay_progress})


class Closed(TopicsError):
    """The log is closed, or the server is about to stop. Nothing was done."""

    code = "shutting_down"
    status = 503
    # The server may be started again.
    retriable = True

    def __init__(self) -> None:
        super().__init__("the log is closed")


class RecordsLost(TopicsError):
    """Records that a reader asked for are gone: seqs `gap_from` to `gap_to`. Read on with `from_seq=next_from_seq`."""

    def __init__(self, topic: str, gap_from: int, gap_to: int, reason: str, next_from_seq: int) -> None:
        super().__init__(
            f'records {gap_from} to {gap_to} of topic "{topic}" are lost ({reason}); '
            f"read on with from_seq={next_from_seq}",
            {"topic": topic, "gap_from": gap_from, "gap_to": gap_to, "reason": reason, "next_from_seq": next_from_seq},
        )
        self.gap_from = gap_from
        self.gap_to = gap_to
        self.reason = reason
        self.next_from_seq = next_from_seq


class BadPayload(TopicsError):
    """A record's payload is not of the type that its reader asked for. Read on with `from_seq=error.seq`."""

    def __init__(self, topic: str, seq: int, wanted: str, problem: str) -> None:
        super().__init__(
            f'record {seq} of topic "{topic}" is no {wanted}: {problem}; read on with from_seq={seq}',
            {"topic": topic, "seq": seq},
        )
        self.topic = topic
        self.seq = seq


class StartRefused(TopicsError):
    """The data directory cannot be served as it is; nothing was changed."""


class SettingsError(StartRefused):
    """Settings that cannot be used. Each problem names its setting, and never a secret value."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class DirectoryLocked(StartRefused):
    pass


class Damaged(StartRefused):
    """Bytes that were known to be durable are bad. Only `topics doctor --repair` cuts."""

    def __init__(self, path: str, offset: int, expected: str, found: str) -> None:
        super().__init__(
            f"{path}: damaged at offset {offset}: expected {expected}, found {found}; "
            "run `topics doctor` on the data directory to see what can be saved",
            {"file": path, "offset": offset},
        )
        self.path = path
        self.offset = offset
        self.expected = expected
        self.found = found


class FutureVersion(StartRefused):
    """Written by a version of topics newer than this one. `offset` is where in the bytes, if that is known."""

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class FormatError(TopicsError):
    """Bytes that are not what they should be. `storage/` adds the file."""

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset


class Torn(FormatError):
    """The bytes end before the structure does."""


class BadFrame(FormatError):
    """Lengths, magic or checksum are wrong."""
