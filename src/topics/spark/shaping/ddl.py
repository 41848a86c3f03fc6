"""The DDL of a schema, checked before Spark sees it: Spark's own error shows a schema that nobody wrote. Pure.

id bigint, `a b` array<struct<sku: string, n: int>>, price decimal(10, 2) COMMENT 'net'
"""

import re
from typing import Final, NoReturn

from topics.spark.errors import BadOption

_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|''|\\.)*'|[^\W]+|[<>(),:]|$)", re.DOTALL)
_ONE_TYPE: Final = re.compile(r"\s*(\w+\s*(\([\d\s,]*\))?|(struct|array|map)\s*<.*>)\s*", re.DOTALL | re.IGNORECASE)
# What `shape.arrow_type` takes, under all its names.
_SCALARS: Final = frozenset(
    {
        *("string", "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"),
        *(
            "float",
            "real",
            "double",
            "decimal",
            "dec",
            "numeric",
            "timestamp",
            "timestamp_ltz",
            "timestamp_ntz",
            "date",
        ),
    }
)
_DEPTH_MAX: Final = 64


def type_of(text: str) -> str:
    """The type that the text is, or a structure with the members that it names. Raises `BadOption` with the place."""
    parser = _Parser(text)
    # A member has a name first, and so at least two words.
    if parser.is_type_only():
        return text.strip()
    parser.members(0, end="")
    return f"struct<{text.strip()}>"


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._word = ""
        self._next()

    def _next(self) -> str:
        """Goes on to the next token; returns the one before."""
        before = self._word
        found = _TOKEN.match(self._text, self._position)
        if found is None:
            self._fail("cannot be read")
        self._word = found[1]
        self._position = found.end()
        return before

    def _fail(self, problem: str) -> NoReturn:
        start = self._position - len(self._word)
        raise BadOption(f"option `schema` at {self._text[start : start + 30].strip()!r}: {problem}")

    def _expect(self, token: str, problem: str) -> None:
        if self._word.lower() != token:
            self._fail(problem)
        self._next()

    def is_type_only(self) -> bool:
        """Whether the whole text is one type. Leaves the parser at the beginning of a text that is none."""
        if _ONE_TYPE.fullmatch(self._text) is None:
            return False
        if self._word.lower() == "variant":
            return True
        self._type(0)
        if self._word:
            self._fail("nothing can follow the type")
        return True

    def members(self, depth: int, *, end: str) -> None:
        while True:
            if not (self._word.startswith("`") or re.fullmatch(r"\w+", self._word)):
                self._fail("must be the name of a member")
            self._next()
            if self._word == ":":
                self._next()
            self._type(depth)
            if self._word.lower() == "not":
                self._fail("NOT NULL is refused, because a record may be without the member")
            if self._word.lower() == "comment":
                self._next()
                if not self._next().startswith("'"):
                    self._fail("a comment is a text in '…'")
            if self._word == end:
                return
            self._expect(",", "must be a comma, or the end")

    def _type(self, depth: int) -> None:
        if depth > _DEPTH_MAX:
            self._fail("is nested too deeply")
        name = self._word.lower()
        if name not in _SCALARS and name not in {"array", "map", "struct"}:
            known = "string, boolean, int, bigint, double, decimal(10,2), timestamp, date, array<…>, map<string,…>"
            self._fail(f"must be a type, such as {known} or struct<…>")
        self._next()
        if name in _SCALARS:
            if self._word == "(":
                while self._next() != ")":
                    if not self._word:
                        self._fail("a ) is missing")
            return
        self._expect("<", f"{name} needs <…>")
        if name == "struct":
            self.members(depth + 1, end=">")
        else:
            if name == "map":
                self._expect("string", "the keys of a map are strings: map<string, …>")
                self._expect(",", "must be a comma: map<string, …>")
            self._type(depth + 1)
        self._expect(">", "a > is missing")
