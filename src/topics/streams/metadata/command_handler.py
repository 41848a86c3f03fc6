"""What the metadata do with one kind of command."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from topics.formats.stream_command import Command

C = TypeVar("C", bound=Command)


@dataclass(frozen=True, slots=True)
class CommandHandler(Generic[C]):
    """`check` gets the user id and the command; `apply` gets the timestamp, the user id and the command."""

    kind: type[C]
    check: Callable[[int, C], None]
    apply: Callable[[int, int, C], None]


# A table of handlers for different kinds of commands. `CommandHandler` has checked that each one fits its kind.
CommandHandlers = dict[type[Command], CommandHandler[Any]]


def change_nothing(_timestamp: int, _user_id: int, _command: Command) -> None:
    """For commands that delete messages: the metadata stay as they are."""
