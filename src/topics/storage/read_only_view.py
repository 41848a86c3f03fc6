"""A data directory as a start would find it, for those who must neither start a server nor change a byte.

Recovery belongs to the engine. Whoever reads files only may not import that, so it runs as a process of its own, which
is started by its name: one request in, one answer out, both JSON. What it has to say about records that are in the log
alone it leaves in a folder of the caller's, laid out like a tier of the same store: STORE, and pairs of `.data` and
`.idx` in `topics/<id>`.
"""

import subprocess
import sys
from typing import Any, Final, Literal

import msgspec

from topics.errors import Damaged, FutureVersion, StartRefused

VIEWER_MODULE: Final = "topics.engine.starting.read_only_view"


class ViewRequest(msgspec.Struct, frozen=True, kw_only=True):
    # Absolute path of the data directory.
    root: str
    # An empty folder, for the caller to remove.
    folder: str
    # The server's setting of that name.
    cold_dir: str | None = None
    # Only this topic; all when it is None.
    topic_id: int | None = None


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    """A topic at the moment of the view. The manifest has the members of the HTTP contract, with nothing left in the
    log: what is there alone is the last of the segments, of tier `tail`."""

    manifest: dict[str, Any]
    type: str
    count: int
    bytes: int
    config: dict[str, Any]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is the name of an error class."""

    kind: str
    message: str
    # Of `Damaged`: path, offset, expected, found.
    damage: tuple[str, int, str, str] | None = None


class ViewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    # `locked`: somebody serves the directory, so that its log cannot be read.
    status: Literal["taken", "locked", "refused"]
    topics: list[TopicView] = []
    warnings: list[str] = []
    refusal: Refusal | None = None


def take_view(request: ViewRequest) -> ViewAnswer:
    """The answer `taken` or `locked`. Raises `StartRefused`, or what it is by name, when a start would be refused."""
    ended = subprocess.run(
        [sys.executable, "-m", VIEWER_MODULE],
        input=msgspec.json.encode(request),
        capture_output=True,
        check=False,
        # Ctrl-C is for the caller, who then stops waiting and thereby ends it.
        start_new_session=True,
    )
    if ended.returncode:
        last_words = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise StartRefused(
            f"{request.root}: looking into the log failed with status {ended.returncode}: {last_words}; "
            "run `topics verify` on the data directory"
        )
    answer = msgspec.json.decode(ended.stdout, type=ViewAnswer)
    if answer.refusal is not None:
        raise refusal_error(answer.refusal)
    return answer


def refusal_error(refusal: Refusal) -> StartRefused:
    if refusal.damage is not None:
        return Damaged(*refusal.damage)
    return FutureVersion(refusal.message) if refusal.kind == "FutureVersion" else StartRefused(refusal.message)
