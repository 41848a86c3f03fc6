"""Records and messages on stdout, one by one, as `-o` or `--format` says, with lost ones in their place."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from topics.cli.output import Output, escaped, message
from topics.cli.remote.forms import Form, json_text, print_csv_line
from topics.errors import InvalidRequest

# What is printed: a `Record`, or a `StreamRecord`. The command line knows no formats.
Item = Any
# What stands for a directive, or makes it of an item.
Directives = Mapping[str, str | Callable[[Item], str]]

_DIRECTIVE: Final = re.compile(r"%(.)|\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


class ItemPrinter(ABC):
    """One kind of items says how each form of an item looks. In CSV, raw and a format of the user, lost items are a
    message on stderr."""

    heading: ClassVar[str]
    columns: ClassVar[Sequence[str]]

    def __init__(self, output: Output, form: Form, name: str, template: str | None) -> None:
        self._output = output
        self._form = form
        self._template = None if template is None else _Template(template, self.directives(name))
        self._count = 0
        if self._template is not None:
            self._form = Form.RAW
        elif form is Form.CSV:
            print_csv_line(output, self.columns)
        elif form is Form.TABLE:
            output.line(self.heading, is_bold=True)

    @property
    def is_closed(self) -> bool:
        return self._output.is_closed

    def record(self, item: Item) -> None:
        if self._template is not None:
            self._output.payload(self._template.fill(item), self._template.end)
            return
        match self._form:
            case Form.TABLE:
                self._output.line(self.line(item))
            case Form.JSON | Form.JSONL:
                self._object(self.row(item))
            case Form.CSV:
                print_csv_line(self._output, self.cells(item))
            case Form.RAW:
                self.print_raw(item)

    def lost(self, text: str, row: dict[str, Any]) -> None:
        """Items that a reader should know of and cannot have: `text` for people, `row` for programs."""
        if self._form is Form.TABLE:
            self._output.line(f"-- {text} --", is_bold=True)
        elif self._form in (Form.JSON, Form.JSONL):
            self._object(row)
        else:
            message(f"topics: {text}")

    def end(self) -> None:
        if self._form is Form.JSON:
            self._output.text("\n]\n" if self._count else "[]\n")

    def _object(self, value: dict[str, Any]) -> None:
        text = json_text(value)
        if self._form is Form.JSON:
            self._output.text(",\n" if self._count else "[\n")
            self._output.payload(escaped(text), end="")
        else:
            self._output.line(text)
        self._count += 1

    # One kind of items.

    @abstractmethod
    def directives(self, name: str) -> Directives:
        """Of `--format`. `name` is where the items come from."""

    @abstractmethod
    def line(self, item: Item) -> str:
        """For a table."""

    @abstractmethod
    def row(self, item: Item) -> dict[str, Any]:
        """For JSON."""

    @abstractmethod
    def cells(self, item: Item) -> Sequence[str]:
        """For CSV, in the order of `columns`."""

    @abstractmethod
    def print_raw(self, item: Item) -> None:
        """The payload and nothing else."""


class _Template:
    """A format of the user: `%s %d` and the escapes of a shell. A line end is added unless it has an end of its own."""

    def __init__(self, text: str, directives: Directives) -> None:
        self.end = next((end for end in ("\n", "\0") if text.endswith({"\n": "\\n", "\0": "\\0"}[end])), "")
        if self.end:
            text = text[:-2]
        else:
            self.end = "\n"
        self._parts: list[str | Callable[[Item], str]] = []
        place = 0
        for match in _DIRECTIVE.finditer(text):
            self._parts.append(text[place : match.start()])
            if match[2]:
                self._parts.append(_ESCAPES.get(match[2], match[0]))
            elif match[1] in directives:
                self._parts.append(directives[match[1]])
            else:
                known = " ".join(f"%{letter}" for letter in directives)
                raise InvalidRequest(f"{match[0]} is not known in --format; there are {known}")
            place = match.end()
        self._parts.append(text[place:])

    def fill(self, item: Item) -> str:
        return "".join(part if isinstance(part, str) else part(item) for part in self._parts)
