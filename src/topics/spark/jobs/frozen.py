"""A plan that is made once: the first run of a job writes down what is to be done, and every later one goes by that.

Without it a rerun would plan anew over input that has grown meanwhile, with other chunks under the same numbers. Of two
runs that begin at once one plan wins, and both go by it.
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
# Below the folder that a job is started in.
STATE_DEFAULT: Final = ".topics-pipeline"

FrozenPlan = TypeVar("FrozenPlan", bound=msgspec.Struct)


class _Document(msgspec.Struct, kw_only=True):
    v: int
    job: str
    # Who writes to the server: a name that no other run has, as the server counts epochs by it for ever.
    writer: str
    created_ms: int
    # What was asked for, so that a plan is not taken for that of something else.
    asked: dict[str, Any]
    plan: msgspec.Raw


def default_id(asked: Mapping[str, Any]) -> str:
    """The same for the same question, so that the same command finds its plan again."""
    return sha256(msgspec.json.encode(dict(asked), order="sorted")).hexdigest()[:12]


def freeze(
    state: str | None,
    job: str,
    job_id: str,
    asked: Mapping[str, Any],
    kind: type[FrozenPlan],
    make: Callable[[], FrozenPlan],
) -> tuple[str, FrozenPlan]:
    """The writer and the plan under this id, made now if there is none yet.

    Raises `Conflict` when the id stands for something else.
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
        assert found is not None, "it was put, by us or by somebody else"
    try:
        document = msgspec.json.decode(found, type=_Document)
        if document.v > VERSION:
            raise FutureVersion(f"{where}: version {document.v}, this one knows {VERSION}; use a newer topics")
        if document.asked != msgspec.json.decode(msgspec.json.encode(dict(asked))):
            raise Conflict(f"{where} is the plan of another {job}; give this one an --id of its own")
        return document.writer, msgspec.json.decode(document.plan, type=kind)
    except msgspec.DecodeError as error:
        raise TopicsError(f"{where} is not readable: {error}; remove it to begin anew") from error
