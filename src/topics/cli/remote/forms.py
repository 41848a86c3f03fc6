"""The forms of an answer on stdout: `-o table|json|jsonl|csv|raw`."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from topics.cli.output import Output


class Form(StrEnum):
    """How data is printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    RAW = "raw"


def plain(value: Any) -> str:
    """A value as one cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int | float):
        return str(value)
    return json_text(value)


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "backslashreplace")


class Column(NamedTuple):
    """A member of the rows that a table shows. `show` makes text for people of it."""

    member: str
    title: str
    show: Callable[[Any], str] = plain


Row = Mapping[str, Any]


def one_line(data: bytes) -> bytes:
    """JSON text without line ends between its members, so that a record is a line."""
    return msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data


def print_rows(output: Output, form: Form, columns: Sequence[Column], rows: Iterable[Row]) -> None:
    """A list. A table and CSV have the columns, JSON all members, raw the first column only."""
    match form:
        case Form.TABLE:
            _print_table(output, columns, list(rows))
        case Form.JSON:
            output.line_block(_indented(list(rows)))
        case Form.JSONL:
            for row in rows:
                output.line(json_text(row))
        case Form.CSV:
            print_csv_line(output, [column.member for column in columns])
            for row in rows:
                print_csv_line(output, [_cell(row[column.member]) for column in columns])
        case Form.RAW:
            for row in rows:
                output.line(_cell(row[columns[0].member]))


def print_one(output: Output, form: Form, row: Row, shows: Mapping[str, Callable[[Any], str]]) -> None:
    """One thing with all its members: a line for each in a table, with `shows` for values that people read."""
    match form:
        case Form.TABLE:
            width = max(len(name) for name in row)
            for name, value in row.items():
                output.line(f"{name:{width}}  {shows.get(name, plain)(value)}")
        case Form.JSON:
            output.line_block(_indented(row))
        case Form.JSONL:
            output.line(json_text(row))
        case Form.CSV:
            print_csv_line(output, row)
            print_csv_line(output, [_cell(value) for value in row.values()])
        case Form.RAW:
            output.line(_cell(next(iter(row.values()))))


def print_csv_line(output: Output, cells: Iterable[str]) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    output.line(line.getvalue())


def _indented(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode("utf-8", "backslashreplace")


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json_text(value)


def _print_table(output: Output, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    cells = [[column.show(row[column.member]) for column in columns] for row in rows]
    is_number = [_is_number([row[column.member] for row in rows]) for column in columns]
    titles = [column.title for column in columns]
    widths = [max(len(line[place]) for line in [titles, *cells]) for place in range(len(columns))]
    for number, line in enumerate([titles, *cells]):
        padded = [
            f"{cell:>{width}}" if right else f"{cell:{width}}"
            for cell, width, right in zip(line, widths, is_number, strict=True)
        ]
        output.line("  ".join(padded).rstrip(), is_bold=number == 0)


def _is_number(values: Sequence[Any]) -> bool:
    """Whether a column is to the right: numbers, and perhaps places without one."""
    kinds = {type(value) for value in values}
    return bool(kinds & {int, float}) and kinds <= {int, float, type(None)}
