"""Takes the members of a request of the wire protocol out of its bytes: `stream_wire.py` says what they look like."""

from typing import Final

from topics.formats.buffers import Buffer
from topics.formats.stream_command import COMPRESSION_CODE_MAX, COMPRESSION_CODE_MIN, UserStatus, refuse
from topics.formats.stream_permissions import Permissions, decode_permissions
from topics.stream_errors import StreamsError, StreamStatus

KIND_ID: Final = 1
KIND_NAME: Final = 2


class WireReader:
    """Takes the members of a request one after the other. Raises `StreamsError` if the bytes end too early."""

    __slots__ = ("_data", "position")

    def __init__(self, data: Buffer) -> None:
        self._data = bytes(data)
        self.position = 0

    @property
    def rest_bytes(self) -> int:
        """How many bytes are left."""
        return len(self._data) - self.position

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self._data):
            refuse(f"the request ends at byte {len(self._data)}, inside a member that ends at {end}")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def u8(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def has(self) -> bool:
        return self.u8() == 1

    def text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise StreamsError(StreamStatus.INVALID_COMMAND, f"text that is not UTF-8: {error.reason}") from error

    def str8(self) -> str:
        return self.text(self.u8())

    def name(self) -> str:
        """A str8 that may not be empty."""
        return self.str8() or refuse("a name is empty", StreamStatus.INVALID_FORMAT)

    def identifier(self) -> int | str:
        kind, size = self.u8(), self.u8()
        if kind not in (KIND_ID, KIND_NAME):
            refuse(f"{kind} is no kind of an identifier")
        if size == 0 if kind == KIND_NAME else size != 4:
            refuse(f"an identifier of kind {kind} has {size} bytes", StreamStatus.INVALID_FORMAT)
        return self.u32() if kind == KIND_ID else self.text(size)

    def status(self) -> UserStatus:
        value = self.u8()
        return UserStatus(value) if value in (1, 2) else refuse(f"{value} is no status of a user")

    def compression(self) -> int:
        value = self.u8()
        if not COMPRESSION_CODE_MIN <= value <= COMPRESSION_CODE_MAX:
            refuse(f"{value} is no code of a compression algorithm")
        return value

    def optional_name(self) -> str | None:
        return self.str8() if self.has() else None

    def optional_status(self) -> UserStatus | None:
        return self.status() if self.has() else None

    def optional_permissions(self) -> Permissions | None:
        return decode_permissions(self.take(self.u32())) if self.has() else None
