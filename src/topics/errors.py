"""The error tree. Catch `TopicsError`, or a leaf.

TopicsError
├── InvalidRequest            400 invalid_request
├── BatchTooLarge             400 batch_too_large
├── RecordTooLarge            400 record_too_large
├── TopicNotFound             404 topic_not_found
├── TopicExistsIncompatible   409 topic_exists_incompatible
├── TopicNotEmpty             409 topic_not_empty
├── TopicFull                 422 topic_full
├── Throttled                 429 throttled               worth a retry
├── CorruptRecord             500 corrupt_record
├── WalFailed                 503 wal_failed              until a restart
├── StorageFull               503 storage_full            worth a retry
├── ColdUnavailable           503 cold_unavailable        worth a retry
├── Closed                    503 shutting_down
├── StartRefused              the data directory cannot be served as it is
│   ├── DirectoryLocked       another process holds it
│   ├── Damaged               bytes that were durable are bad: file, offset, expected, found
│   └── FutureVersion         written by a newer version
└── FormatError               bytes that are not what they should be (raised by `formats/`)
    ├── Torn                  the bytes end too early
    └── BadFrame              lengths, magic or checksum are wrong
"""

from collections.abc import Mapping
from typing import ClassVar

Detail = Mapping[str, object]


class TopicsError(Exception):
    """Base of everything this package raises on purpose.

    `code` and `status` are those of the HTTP contract; `detail` is what a client may decide by;
    `retriable` says whether the same call can succeed later without anybody's help.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, detail: Detail | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class InvalidRequest(TopicsError):
    code = "invalid_request"
    status = 400


class BatchTooLarge(TopicsError):
    code = "batch_too_large"
    status = 400


class RecordTooLarge(TopicsError):
    code = "record_too_large"
    status = 400


class TopicNotFound(TopicsError):
    code = "topic_not_found"
    status = 404

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" does not exist', {"topic": topic})


class TopicExistsIncompatible(TopicsError):
    code = "topic_exists_incompatible"
    status = 409


class TopicNotEmpty(TopicsError):
    code = "topic_not_empty"
    status = 409


class TopicFull(TopicsError):
    code = "topic_full"
    status = 422


class Throttled(TopicsError):
    code = "throttled"
    status = 429
    retriable = True


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
    code = "storage_full"
    status = 503
    retriable = True

    def __init__(self, message: str = "no space left; nothing was written") -> None:
        super().__init__(message)


class ColdUnavailable(TopicsError):
    code = "cold_unavailable"
    status = 503
    retriable = True


class Closed(TopicsError):
    code = "shutting_down"
    status = 503

    def __init__(self) -> None:
        super().__init__("the log is closed")


class StartRefused(TopicsError):
    """The data directory cannot be served as it is; nothing was changed."""


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
    """Written by a version of topics newer than this one."""


class FormatError(TopicsError):
    """Bytes that are not what they should be. `storage/` adds the file."""

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset


class Torn(FormatError):
    """The bytes end before the structure does."""


class BadFrame(FormatError):
    """Lengths, magic or checksum are wrong."""
