"""Where a copied record comes from, written into its `meta`: the copy gets another seq and another time.

    {"colour": "red", "_topics_origin": {"topic": "orders", "seq": 17, "ts": 1767225600000}}

The members of a meta are kept. A meta that is no JSON object is kept as the member `meta`: a server refuses such a
record, but a file may hold one.
"""

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

ORIGIN: Final = "_topics_origin"
REPLAY: Final = "_topics_replay"


def source_mark(seq: "Column", ts: "Column", topic: str | None = None) -> "Column":
    """JSON text that names a record: topic, seq, and its time in milliseconds."""
    from pyspark.sql.functions import concat, lit, unix_millis

    beginning = '{"seq":' if topic is None else f'{{"topic":{json.dumps(topic)},"seq":'
    return concat(lit(beginning), seq.cast("string"), lit(',"ts":'), unix_millis(ts).cast("string"), lit("}"))


def marked(meta: "Column", key: str, mark: "Column") -> "Column":
    """The meta with one more member, at the end: of two members with one name readers take the last."""
    from pyspark.sql.functions import concat, lit, regexp_replace, when

    alone = concat(lit(f'{{"{key}":'), mark, lit("}"))
    appended = concat(lit(f',"{key}":'), mark, lit("}"))
    return (
        when(meta.isNull() | meta.rlike(r"^\s*\{\s*\}\s*$"), alone)
        .when(meta.rlike(r"^\s*\{"), concat(regexp_replace(meta, r"\}\s*$", ""), appended))
        .otherwise(concat(lit('{"meta":'), meta, appended))
    )
