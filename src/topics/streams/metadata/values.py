"""Rules for the values in commands. A value that its type on the wire could not hold is refused the same way here."""

from typing import Final

from topics.formats.stream_command import NAME_BYTES_MAX
from topics.limits import U64_MAX
from topics.stream_errors import StreamsError, StreamStatus

USERNAME_BYTES: Final = range(3, 51)
TOKEN_NAME_BYTES: Final = range(3, 31)


def check_name(name: str, invalid: StreamStatus) -> None:
    """The name of a stream, topic or group."""
    size = _byte_count(name)
    if size == 0:
        raise StreamsError(StreamStatus.INVALID_FORMAT, "a name is empty")
    if size > NAME_BYTES_MAX:
        raise StreamsError(invalid, f"a name has {size} bytes: the limit is {NAME_BYTES_MAX}")


def check_username(name: str) -> None:
    if _byte_count(name) not in USERNAME_BYTES:
        raise StreamsError(
            StreamStatus.INVALID_USERNAME,
            f"the name of a user has {USERNAME_BYTES.start} to {USERNAME_BYTES.stop - 1} bytes",
        )


def check_token_name(name: str) -> None:
    if _byte_count(name) not in TOKEN_NAME_BYTES:
        raise StreamsError(
            StreamStatus.INVALID_PERSONAL_ACCESS_TOKEN_NAME,
            f"the name of a token has {TOKEN_NAME_BYTES.start} to {TOKEN_NAME_BYTES.stop - 1} bytes",
        )


def check_u64(value: int) -> None:
    if not 0 <= value <= U64_MAX:
        raise StreamsError(StreamStatus.INVALID_COMMAND, f"{value} does not fit 64 bits")


def _byte_count(name: str) -> int:
    try:
        return len(name.encode())
    except UnicodeEncodeError as error:
        raise StreamsError(StreamStatus.INVALID_FORMAT, "a name is text that UTF-8 cannot hold") from error
