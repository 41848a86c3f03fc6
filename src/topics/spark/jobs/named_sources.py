"""The topics and lakes that a query names: `topics.orders`, and a lake as lake.`./lake`, with its address. Pure.

Each becomes an input of the query, and its name in the query becomes the name of a view.
"""

import re
from typing import NamedTuple

from topics.spark.sql_tables import NameInQuery, replace_names


class NamedQuery(NamedTuple):
    query: str
    # A view, and `topic:NAME` or `lake:ADDRESS`.
    inputs: tuple[tuple[str, str], ...]


def named_sources(query: str) -> NamedQuery:
    """The query with views in place of the names, and what each view reads."""
    views: dict[str, str] = {}

    def view_of(found: NameInQuery) -> str | None:
        is_lake = found.kind == "lake"
        if is_lake and not found.is_quoted:
            # A table of a database `lake`.
            return None
        what = f"{'lake' if is_lake else 'topic'}:{found.name}"
        if what not in views:
            name = "lake" if is_lake else re.sub(r"\W", "_", found.name)
            views[what] = f"_{name}_{len(views)}"
        return views[what]

    changed = replace_names(query, ("topics", "lake"), view_of)
    return NamedQuery(changed, tuple((view, what) for what, view in views.items()))
