"""A plan that is made once: the first run of a job writes the plan down, and every later run follows it.

Otherwise a rerun would plan again over input that has grown, and give other chunks the same numbers. When two runs
begin at once, one plan wins, and both follow it.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final, TypeVar

import msgspec

from topics.clock import SystemClock
from topics.errors import FutureVersion, TopicsError
from topics.spark.errors import Conflict
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_shared_store

VERSION: Final = 1
# In the folder that the job is started in.
STATE_DEFAULT: Final = ".topics-pipeline"

FrozenPlan = TypeVar("FrozenPlan", bound=msgspec.Struct)


class _Document(msgspec.Struct, kw_only=True):
    v: int
    job: str
    # The name of the writer on the server. No other job has it, because the server keeps the epochs of a writer.
    writer: str
    created_ms: int
    # The options of the job: a plan is for these options only.
    asked: dict[str, Any]
    plan: msgspec.Raw


def default_id(asked: Mapping[str, Any]) -> str:
    """The same for the same options, so that the same command finds its plan again."""
    return sha256(msgspec.json.encode(dict(asked), order="sorted")).hexdigest()[:12]


def freeze(
    state: str | None,
    job: str,
    job_id: str,
    asked: Mapping[str, Any],
    kind: type[FrozenPlan],
    make: Callable[[], FrozenPlan],
) -> tuple[str, FrozenPlan]:
    """The writer and the plan with this id. When there is no such plan yet, it is made and written down.

    Raises `Conflict` when the plan with this id was made for other options.
    """
    store = open_shared_store(state or STATE_DEFAULT, RealFs())
    name = f"{job}-{job_id}.json"
    where = f"{store.address}/{name}"

    def read() -> bytes | None:
        try:
            return store.read_range(name, 0, store.size(name))
        except FileNotFoundError:
            return None

    found = read()
    if found is None:
        made = _Document(
            v=VERSION,
            job=job,
            writer=f"{job}:{job_id}:{token_hex(4)}",
            created_ms=SystemClock().now_ms(),
            asked=dict(asked),
            plan=msgspec.Raw(msgspec.json.encode(make())),
        )
        store.put_if_absent(name, msgspec.json.encode(made))
        found = read()
        assert found is not None, "this run or another one has put it"
    try:
        document = msgspec.json.decode(found, type=_Document)
        if document.v > VERSION:
            raise FutureVersion(f"{where}: version {document.v}, this one knows {VERSION}; use a newer topics")
        if document.asked != msgspec.json.decode(msgspec.json.encode(dict(asked))):
            raise Conflict(f"{where} is the plan of another {job}; give this {job} another --id")
        return document.writer, msgspec.json.decode(document.plan, type=kind)
    except msgspec.DecodeError as error:
        raise TopicsError(f"{where} is not readable: {error}; remove it to begin again") from error
