"""Starts a process that makes a view of a data directory. It gets one request and gives one answer, both JSON.

The process (`viewer`) runs the recovery of the engine. So a program that only reads files, such as a Spark job, gets
the result of a recovery without importing the engine.

Records that are only in the log have no segment files. The process writes them into a folder that the request names,
in the layout of a tier of the same store: STORE, and pairs of `.data` and `.idx` in `topics/<id>`.
"""

import subprocess
from typing import Any, Final, Literal, assert_never

import msgspec

from topics.errors import Damaged, FutureVersion, StartRefused
from topics.interpreter import NoInterpreter, module_command

VIEWER_MODULE: Final = "topics.offline_view.viewer"


class ViewRequest(msgspec.Struct, frozen=True, kw_only=True):
    # Absolute path of the data directory.
    root: str
    # Absolute path of an empty folder. The caller removes it.
    folder: str
    # Address of the cold tier, as in the settings of the server.
    cold_dir: str | None = None
    # Only this topic; None = all topics.
    topic_id: int | None = None
    # Whether the answer has the state of all topics and routers, too.
    with_snapshot: bool = False


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    """A topic at the moment of the view. The manifest has the members of the HTTP contract.

    The last segments of the manifest have tier `tail`. They hold the records that are only in the log.
    """

    manifest: dict[str, Any]
    type: str
    count: int
    bytes: int
    config: dict[str, Any]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The error that a start would be refused with."""

    kind: Literal["damaged", "future_version", "other"]
    message: str
    # Only for kind `damaged`: path, offset, expected, found.
    damage: tuple[str, int, str, str] | None = None


class ViewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    # `locked`: a server has the directory open, so its log cannot be read.
    status: Literal["taken", "locked", "refused"]
    topics: list[TopicView] = []
    warnings: list[str] = []
    # Only with `with_snapshot`: a snapshot file, when it was taken, and of which store.
    snapshot: bytes = b""
    ts: int = 0
    store_id: str = ""
    refusal: Refusal | None = None


def take_view(request: ViewRequest) -> ViewAnswer:
    """The answer `taken` or `locked`. Raises `StartRefused`, or a subclass of it, when a start would be refused."""
    try:
        command = module_command(VIEWER_MODULE)
    except NoInterpreter as error:
        raise StartRefused(f"{request.root}: its log cannot be read in another process: {error}") from error
    ended = subprocess.run(
        command,
        input=msgspec.json.encode(request),
        capture_output=True,
        check=False,
        # Ctrl-C interrupts only the caller. `subprocess.run` then kills the viewer.
        start_new_session=True,
    )
    if ended.returncode:
        last_words = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise StartRefused(
            f"{request.root}: the recovery for a view failed with status {ended.returncode}: {last_words}; "
            "run `topics verify` on the data directory"
        )
    answer = msgspec.json.decode(ended.stdout, type=ViewAnswer)
    if answer.refusal is not None:
        raise refusal_error(answer.refusal)
    return answer


def refusal_error(refusal: Refusal) -> StartRefused:
    if refusal.kind == "damaged":
        assert refusal.damage is not None
        return Damaged(*refusal.damage)
    if refusal.kind == "future_version":
        return FutureVersion(refusal.message)
    if refusal.kind == "other":
        return StartRefused(refusal.message)
    assert_never(refusal.kind)
