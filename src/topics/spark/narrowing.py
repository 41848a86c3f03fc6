"""Options of a read that follow from a filter: `seq > 100 AND tag = 'a'` needs no other records. Pure.

Spark 4.3 cannot pass filters to a Python source safely: it keeps the plan of the first filter for every use of a
DataFrame. So `topics.spark.read(spark, where=…)` reads the filter itself, and sets options, which are those of one
DataFrame.

rule 1  Options leave out only records that the filter leaves out. Spark applies the filter itself afterwards.
rule 2  What is not understood here leaves out nothing: OR, NOT, functions, other columns, times without a zone.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

_WORDS: Final = re.compile(
    r"""(?P<text>'(?:[^'\\])*')|(?P<number>[0-9]+)(?![\w.])|(?P<name>[A-Za-z_]\w*)|(?P<sign><=>|<=|>=|<>|!=|==|[=<>()])"""
    r"|(?P<space>\s+)|(?P<other>.)",
    re.DOTALL,
)
_UNSURE: Final = re.compile(r"--|/\*|[\"`\\]")
_MIRRORED: Final = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "==": "="}
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# Words as they are written, names in lower case.
Condition = Sequence[str]


def options_of(condition: str) -> dict[str, str]:
    """Options of a batch read with which no record is missed that fulfils the condition."""
    found = _Bounds()
    # Comments, escapes and other quotes could hide where a text ends.
    for part in () if _UNSURE.search(condition) else _conjuncts(_words(condition)):
        found.add(part)
    return found.options()


def _words(condition: str) -> list[str]:
    return [
        found[0].lower() if found.lastgroup == "name" else found[0]
        for found in _WORDS.finditer(condition)
        if found.lastgroup != "space"
    ]


def _conjuncts(words: Condition) -> Iterator[Condition]:
    """The parts that are joined by AND. A condition with another operator outside of parentheses is one part."""
    parts: list[list[str]] = [[]]
    depth = 0
    is_between = False
    for word in words:
        depth += {"(": 1, ")": -1}.get(word, 0)
        if not depth and word in {"or", "not", "case", "xor"}:
            return
        if not depth and word == "and" and not is_between:
            parts.append([])
            continue
        if not depth:
            is_between = word == "between" or (is_between and word != "and")
        parts[-1].append(word)
    for part in parts:
        inner = part[1:-1]
        if part[:1] == ["("] and part[-1:] == [")"] and _is_closed(inner):
            yield from _conjuncts(inner)
        else:
            yield part


def _is_closed(words: Condition) -> bool:
    """Whether every `)` has its `(` inside."""
    depth = 0
    for word in words:
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth < 0:
            return False
    return depth == 0


class _Bounds:
    def __init__(self) -> None:
        self._least: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._texts: dict[str, str] = {}

    def options(self) -> dict[str, str]:
        options = dict(self._texts)
        if "seq" in self._least:
            options["minSeq"] = str(max(self._least["seq"], 0))
        if "seq" in self._most:
            options["maxSeq"] = str(max(self._most["seq"], 0))
        start, end = self._least.get("ts"), self._most.get("ts")
        if start is not None and start >= 0:
            options["startingTimestamp"] = str(start)
        if end is not None and end >= max(start or 0, 0):
            options["endingTimestamp"] = str(end)
        return options

    def add(self, part: Condition) -> None:
        match part:
            case [column, "between", *bounds] if "and" in bounds:
                middle = bounds.index("and")
                self._compare(column, ">=", bounds[:middle])
                self._compare(column, "<=", bounds[middle + 1 :])
            case ["tag", "like", pattern] if re.fullmatch(r"'[^%_]+%'", pattern):
                self._texts.setdefault("tagPrefix", pattern[1:-2])
            case [("seq" | "ts" | "tag" | "node") as column, sign, *value] if sign in _MIRRORED:
                self._compare(column, sign, value)
            case [value, sign, column] if sign in _MIRRORED:
                self._compare(column, _MIRRORED[sign], [value])

    def _compare(self, column: str, sign: str, value: Condition) -> None:
        if column == "seq" and len(value) == 1 and value[0].isdecimal():
            self._bound("seq", sign, int(value[0]), int(value[0]))
        elif column == "ts":
            time = _time(value[1:] if value[:1] == ["timestamp"] else value)
            if time is not None:
                # Records have whole milliseconds. The end is excluded.
                least = (time - _EPOCH) // _MILLISECOND
                before = -((_EPOCH - time) // _MILLISECOND) if sign == "<" else least + 1
                self._bound("ts", sign.replace(">", ">=") if sign == ">" else sign, least, before, is_open=True)
        elif column in {"tag", "node"} and sign in {"=", "=="} and len(value) == 1 and value[0].startswith("'"):
            self._texts.setdefault(column, value[0][1:-1])

    def _bound(self, name: str, sign: str, least: int, most: int, *, is_open: bool = False) -> None:
        if sign in {">", ">=", "=", "=="}:
            self._least[name] = max(self._least.get(name, least), least + (sign == ">"))
        if sign in {"<", "<=", "=", "=="}:
            most -= sign == "<" and not is_open
            self._most[name] = min(self._most.get(name, most), most)


def _time(value: Condition) -> datetime | None:
    """A time with a zone. Without one it would depend on the session."""
    if len(value) != 1 or not value[0].startswith("'"):
        return None
    try:
        found = datetime.fromisoformat(value[0][1:-1].strip())
    except ValueError:
        return None
    return None if found.tzinfo is None else found
