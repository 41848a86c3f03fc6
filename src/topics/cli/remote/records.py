"""How `topics read` and `topics tail` choose and print records."""

import fnmatch
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from topics.cli.remote.forms import one_line
from topics.cli.remote.items import Directives, ItemPrinter
from topics.cli.remote.shown import show_time
from topics.limits import READ_LIMIT_MAX
from topics.results import Tombstone

if TYPE_CHECKING:
    from topics.client.sync.client import Client

# A `Record`; the command line knows no formats.
RecordLike = Any
Matches = Callable[[RecordLike], bool]

# Which records.


def matcher(conditions: list[str]) -> Matches:
    """Conditions that must all hold: MEMBER=GLOB for tag, node or a path in the payload, or text of the payload."""
    checks = [_condition(text) for text in conditions]
    return lambda record: all(check(record) for check in checks)


def _condition(text: str) -> Matches:
    member, _, pattern = text.partition("=")
    if member in {"tag", "node"} and member != text:
        return lambda record: fnmatch.fnmatchcase(getattr(record, member) or "", pattern)
    check = payload_condition(text)
    return lambda record: check(record.data)


def payload_condition(text: str) -> Callable[[bytes], bool]:
    """MEMBER=GLOB for a path in a payload of JSON, or text of the payload."""
    member, equals, pattern = text.partition("=")
    if not equals:
        wanted = text.encode()
        return lambda data: wanted in data
    path = member.split(".")
    return lambda data: _is_match(data, path, pattern)


def _is_match(data: bytes, path: list[str], pattern: str) -> bool:
    try:
        value: Any = msgspec.json.decode(data)
    except msgspec.DecodeError:
        # A message of a stream may be anything.
        return False
    for name in path:
        if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            return False
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return fnmatch.fnmatchcase(text, pattern)


def seq_before(client: "Client", topic: str, ts_ms: int) -> int:
    """The cursor before the first record that is not older than the time. Halves the seqs, as times ascend."""
    state = client.state(topic)
    low, high = state.earliest_seq - 1, state.head_seq
    while low < high:
        middle = (low + high) // 2
        page = client.read(topic, middle, limit=1)
        while not page.records and page.next_from_seq < high:
            # A page ends in a long run of deleted records.
            page = client.read(topic, page.next_from_seq, limit=1)
        if not page.records or page.records[0].ts >= ts_ms:
            high = middle
        else:
            low = page.records[0].seq
    return low


def seq_before_last(client: "Client", topic: str, count: int) -> int:
    """The cursor before the last `count` records. Deleted seqs have no record, so the last ones are looked at."""
    state = client.state(topic)
    floor = state.earliest_seq - 1
    if count >= state.count:
        return floor
    span = count
    while True:
        start = max(floor, state.head_seq - span)
        last: deque[int] = deque(maxlen=count)
        cursor = start
        while cursor < state.head_seq:
            page = client.read(topic, cursor, limit=READ_LIMIT_MAX)
            last.extend(record.seq for record in page.records)
            cursor = page.next_from_seq
        if len(last) == count and count:
            return last[0] - 1
        if start == floor or not count:
            return start
        span *= 4


# Their form.


def row_of(record: RecordLike) -> dict[str, Any]:
    """All members that the record has, with the payload as it was written."""
    row: dict[str, Any] = {"seq": record.seq, "ts": record.ts}
    row |= {name: value for name in ("tag", "node") if (value := getattr(record, name)) is not None}
    row["data"] = msgspec.Raw(one_line(record.data))
    if record.meta is not None:
        row["meta"] = msgspec.Raw(one_line(record.meta))
    return row


class RecordPrinter(ItemPrinter):
    """Prints records and tombstones."""

    heading = f"{'SEQ':>10}  {'TIME':24}  {'TAG':16}  DATA"
    columns = ("seq", "ts", "tag", "node", "data", "meta")

    def tombstone(self, lost: Tombstone) -> None:
        members = {"gap_from": lost.gap_from, "gap_to": lost.gap_to, "reason": lost.reason}
        self.lost(f"records {lost.gap_from} to {lost.gap_to} are lost ({lost.reason})", {"tombstone": members})

    def line(self, item: RecordLike) -> str:
        data = one_line(item.data).decode(errors="replace")
        return f"{item.seq:>10}  {show_time(item.ts):24}  {item.tag or '-':16}  {data}"

    def row(self, item: RecordLike) -> dict[str, Any]:
        return row_of(item)

    def cells(self, item: RecordLike) -> list[str]:
        return [_cell(getattr(item, name)) for name in self.columns]

    def print_raw(self, item: RecordLike) -> None:
        self._output.payload(raw_text(item.data))

    def directives(self, name: str) -> Directives:
        return {
            "t": name,
            "s": lambda record: str(record.seq),
            "T": lambda record: show_time(record.ts),
            "m": lambda record: str(record.ts),
            "g": lambda record: record.tag or "",
            "n": lambda record: record.node or "",
            "d": lambda record: raw_text(record.data),
            "j": lambda record: _cell(record.data),
            "M": lambda record: _cell(record.meta),
            "%": "%",
        }


def raw_text(data: bytes) -> str:
    """A payload that is a string as its text, any other payload as JSON."""
    if data.startswith(b'"'):
        return str(msgspec.json.decode(data))
    return one_line(data).decode(errors="replace")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return one_line(value).decode(errors="replace") if isinstance(value, bytes) else str(value)
