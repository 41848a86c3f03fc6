"""The metrics that an expression of PromQL uses, held against those that a server has."""

import re
from functools import cache
from typing import Final

from topics.server.metrics import MetricFamily, metric_families

# Every metric of ours begins so. `up` is of Prometheus itself.
# A recording rule has colons in its name.
_NAME: Final = re.compile(r"(?<![:\w])(?:topics|process)_[a-z0-9_]+(?![:\w])")
_SERIES_OF: Final = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


@cache
def _family_by_series() -> dict[str, tuple[str, MetricFamily]]:
    found = {}
    for name, family in metric_families().items():
        for ending in _SERIES_OF.get(family.kind, ("",)):
            found[name + ending] = name, family
    return found


def families_of(expression: str) -> dict[str, MetricFamily]:
    """By name. An expression with an unknown metric is a bug: its dashboard or alert would stay empty."""
    found = {}
    for series in _NAME.findall(expression):
        assert series in _family_by_series(), f"no server has {series}, which is in {expression}"
        name, family = _family_by_series()[series]
        found[name] = family
    return found
