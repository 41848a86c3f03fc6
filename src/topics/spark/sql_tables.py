"""A topic as a table of Spark SQL: `CREATE TABLE orders USING topics OPTIONS (endpoint '…', subscribe 'orders')`.

Spark 4.3 keeps the options of such a table, but does not pass them on when the table is read. It passes on the columns,
with their comments. So the comment of the first column has the options, as `topics: {"endpoint": …}`.

rule 1  Only reads look at the comment. In `INSERT INTO a SELECT * FROM b` Spark gives the writer the comments of *b*:
        rows for `a` would go to `b`. So a write names its topic itself: `INSERT INTO a WITH (topic 'a', …)`.
rule 2  Each topic has a table of its own, and options next to the name of a table (`a WITH (…)`) are refused. A name is
        looked up once for each query, and all its places share one source, which keeps its first plan without a lock.
        So two reads of one table with different options have the rows of one of them: always without adaptive
        execution, now and then with it. Views with options on one table have the same fault.
rule 3  Comments are seen by everyone who sees the table, so that no comment has a key: `token` is refused.

A query that names a table plans it anew. For the same reason as in rule 2, two places of one table in one query have
one snapshot, or two that were taken at nearly the same time.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from topics.spark.errors import BadOption
from topics.spark.option_values import ENDPOINT_VARIABLE
from topics.spark.options import parse_options
from topics.storage.tiers.addresses import path_of_address

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_COMMENT: Final = "topics: "
# Spark adds it to the options of a table, and to no other.
_PROVIDER: Final = "provider"
_OWN: Final = "option."
_NOT_NULL: Final = " not null"
_DDL_PARTS: Final = re.compile(r"`[^`]*`|'(?:[^'\\]|\\.)*'|[<>(),]")
# Spark refuses other names of tables.
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_]")


def is_table(given: Mapping[str, str]) -> bool:
    """Whether these are the options with which Spark makes a table."""
    return _PROVIDER in {name.lower() for name in given}


def options_of_new(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The read options of a table that Spark makes, without what Spark adds to them. Raises `BadOption`."""
    options = {name[len(_OWN) :]: value for name, value in given.items() if name.lower().startswith(_OWN)}
    place = {name.lower(): value for name, value in given.items()}.get("path")
    names = {name.lower() for name in options}
    if "token" in names:
        raise BadOption("a table shows its options to everyone: give `tokenEnv` or `tokenFile`, not `token`")
    if place is not None:
        if "endpoint" in names:
            raise BadOption("a table has `endpoint`, or a path or location, not both")
        path = path_of_address(place)
        options["path"] = place if path is None else os.path.abspath(path)
    elif "endpoint" not in names and ENDPOINT_VARIABLE in environment:
        options["endpoint"] = environment[ENDPOINT_VARIABLE]
    parse_options(options, mode="batch")
    return options


def with_comment(ddl: str, options: Mapping[str, str]) -> str:
    """Columns of a table with these options. All may be null, so that an INSERT can leave out what the server gives."""
    text = _COMMENT + msgspec.json.encode(dict(sorted(options.items()))).decode()
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    first, *others = (column.removesuffix(_NOT_NULL) for column in _columns(ddl))
    return ", ".join([f"{first} COMMENT '{quoted}'", *others])


def _columns(ddl: str) -> Iterator[str]:
    """Columns of DDL text. A structure has commas inside of `<…>`, and a name may have some."""
    depth = begin = 0
    for found in _DDL_PARTS.finditer(ddl):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(found[0], 0)
        if found[0] == "," and not depth:
            yield ddl[begin : found.start()].strip()
            begin = found.end()
    yield ddl[begin:].strip()


def is_of_topic(schema: "StructType") -> bool:
    """Whether these are the columns of a table that reads topics."""
    return _comment(schema).startswith(_COMMENT)


def _comment(schema: "StructType") -> str:
    return str(schema.fields[0].metadata.get("comment", "")) if schema.fields else ""


def read_options(given: Mapping[str, str], schema: "StructType") -> Mapping[str, str]:
    """The options of a read, which for a table are in its columns. Raises `BadOption`."""
    comment = _comment(schema)
    if not is_of_topic(schema):
        if not given:
            raise BadOption(
                "no option says what to read. A table has its options when it is made without a list of columns: "
                "CREATE TABLE … USING topics OPTIONS (endpoint '…', subscribe '…')"
            )
        return given
    if given:
        raise BadOption(
            f"the columns are those of a table with options of its own, so that `{min(given)}` cannot be given: when a "
            "query names a table twice, Spark reads it with the options of one place. Read with spark.read instead"
        )
    return msgspec.json.decode(comment[len(_COMMENT) :], type=dict[str, str])


def require_write_options(given: Mapping[str, str]) -> None:
    """Raises `BadOption` for a write that names nothing, as an INSERT does."""
    if not given:
        raise BadOption(
            "Spark does not tell which table an INSERT is for, so say where the rows go: "
            "INSERT INTO … WITH (topic 'orders', endpoint '…', writerId '…') (data, tag) …"
        )


def table_name(topic: str) -> str:
    """The name of a topic as a table: letters, digits and `_`."""
    return _NOT_IN_NAMES.sub("_", topic)


# Names in queries.

# Texts, quoted names and comments are skipped.
_SKIPPED: Final = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*.*?\*/"""


class NameInQuery(NamedTuple):
    """A name with two parts, such as topics.`my-topic`. Only a quoted name can be any text."""

    kind: str
    name: str
    is_quoted: bool


def replace_names(query: str, kinds: Iterable[str], replacement: Callable[[NameInQuery], str | None]) -> str:
    """The query with other texts in place of the names that begin with one of the kinds. With None a name stays."""
    any_kind = "|".join(map(re.escape, kinds))
    parts = re.compile(
        rf"{_SKIPPED}|(?<![\w.`])(?P<kind>{any_kind})\.(?:`(?P<quoted>[^`]+)`|(?P<plain>\w+))|`[^`]*`",
        re.IGNORECASE | re.DOTALL,
    )

    def replaced(found: re.Match[str]) -> str:
        if found["kind"] is None:
            return found[0]
        quoted = found["quoted"]
        name = NameInQuery(found["kind"].lower(), quoted or found["plain"], is_quoted=quoted is not None)
        return replacement(name) or found[0]

    return parts.sub(replaced, query)
