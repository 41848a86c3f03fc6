"""The type of a sample of JSON texts, as DDL. Pure.

Every member that the sample has is named. Where values have several types, the type that most of them have wins: the
others do not fit, and are rescued when records are read. Integers are `bigint`, or `decimal(38,0)` when most are too
large for it. A number with a fraction or an exponent makes all numbers of its member `double`. Strings stay strings,
also those that look like times.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from topics.spark.errors import BadOption
from topics.spark.shaping.fit import Members, Real, parse

# The rest of a record is rescued.
MEMBERS_MAX: Final = 1000
DEPTH_MAX: Final = 32
_BIGINT: Final = range(-(2**63), 2**63)


@dataclass(slots=True)
class _Seen:
    """Values of one place of the records: how many of each kind, and what is in them."""

    booleans: int = 0
    numbers: int = 0
    texts: int = 0
    arrays: int = 0
    objects: int = 0
    large_numbers: int = 0
    has_real: bool = False
    element: "_Seen | None" = None
    members: dict[str, "_Seen"] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.booleans + self.numbers + self.texts + self.arrays + self.objects

    def add(self, value: Any, depth: int = 0) -> None:
        if value is None or depth > DEPTH_MAX:
            return
        if isinstance(value, bool):
            self.booleans += 1
        elif isinstance(value, Real | int):
            self.numbers += 1
            if isinstance(value, Real):
                self.has_real = True
            elif value not in _BIGINT:
                self.large_numbers += 1
        elif isinstance(value, str):
            self.texts += 1
        elif isinstance(value, Members):
            self.objects += 1
            self._add_members(value, depth)
        else:
            self.arrays += 1
            self.element = self.element or _Seen()
            for element in value:
                self.element.add(element, depth + 1)

    def _add_members(self, value: Members, depth: int) -> None:
        for name, member in value.pairs:
            if name not in self.members:
                if len(self.members) == MEMBERS_MAX:
                    continue
                self.members[name] = _Seen()
            self.members[name].add(member, depth + 1)

    def ddl(self) -> str:
        kinds = {
            "boolean": self.booleans,
            self._number(): self.numbers,
            "string": self.texts,
            "array": self.arrays,
            "struct": self.objects,
        }
        winner = max(kinds, key=lambda kind: kinds[kind])
        if self.count == 0:
            return "string"
        if winner == "array":
            assert self.element is not None
            return f"array<{self.element.ddl()}>"
        return self._struct() if winner == "struct" else winner

    def _number(self) -> str:
        if self.has_real:
            return "double"
        return "decimal(38,0)" if 2 * self.large_numbers > self.numbers else "bigint"

    def _struct(self) -> str:
        """Names of Spark do not know upper and lower case: of such names the most frequent one wins."""
        by_lower: dict[str, str] = {}
        for name, seen in self.members.items():
            other = by_lower.get(name.lower())
            if other is None or seen.count > self.members[other].count:
                by_lower[name.lower()] = name
        named = [name for name in self.members if by_lower[name.lower()] == name and _is_name(name)]
        if not named:
            # A structure needs a member.
            return "map<string,string>"
        return f"struct<{','.join(f'{quoted(name)}:{self.members[name].ddl()}' for name in named)}>"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _is_name(name: str) -> bool:
    """Whether Spark takes it as a name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return bool(name)


def infer(texts: Iterable[str | None]) -> str:
    """Raises `BadOption` for a sample without values."""
    seen = _Seen()
    for text in texts:
        if text is not None:
            try:
                seen.add(parse(text))
            except ValueError:
                continue
    if seen.count == 0:
        raise BadOption("there is no record yet that tells a schema; give `schema` as DDL, or wait for records")
    return seen.ddl()
