"""The disk of a data directory: whether it has room, syncs what it is told to, and is closed to others."""

from collections.abc import Iterator
from time import perf_counter
from typing import Final

from topics.limits import MIB, WAL_FILE_BYTES
from topics.storage import layout
from topics.storage.fs import Fs, Host, write_all
from topics.storage.inspect.findings import Finding

# A sync that reaches the disk takes longer. The fastest disks, with a protected cache, take about this long.
FSYNC_PLAUSIBLE_MICROS: Final = 10
FSYNC_TRIES: Final = 9
FREE_BYTES_MIN: Final = 4 * WAL_FILE_BYTES
PERMISSIONS_NAMED_MAX: Final = 5
_PROBE: Final = "doctor" + layout.TEMPORARY


def check_disk(fs: Fs, root: str, host: Host | None) -> Iterator[Finding]:
    """Without a `host` only the time of a sync is looked at."""
    if host is not None:
        try:
            yield from _check_host(fs, root, host)
        except OSError as error:
            yield Finding(severity="warning", file=".", message=f"cannot be examined: {error}")
    yield from _check_sync(fs, root)


def _check_host(fs: Fs, root: str, host: Host) -> Iterator[Finding]:
    free = host.free_bytes(root)
    if free < FREE_BYTES_MIN:
        yield Finding(
            severity="warning",
            file=".",
            message=f"only {free // MIB} MiB are free on its disk",
            advice="writes are refused with storage_full when nothing is left; make room",
        )
    if not host.can_sync_dir(root):
        yield Finding(
            severity="warning",
            file=".",
            message="this file system cannot sync directories; a power cut may undo renames",
            advice="use a local file system such as ext4 or XFS",
        )
    named = 0
    for path, mode, wanted in _open_to_others(fs, root, host):
        named += 1
        if named <= PERMISSIONS_NAMED_MAX:
            yield Finding(
                severity="warning",
                file=path.removeprefix(root + "/") if path != root else ".",
                message="others may read or change it",
                expected=f"mode {wanted:04o}",
                found=f"{mode:04o}",
                advice=f"chmod {wanted:04o} on it",
            )
    if named > PERMISSIONS_NAMED_MAX:
        text = f"{named - PERMISSIONS_NAMED_MAX} more files are open to others"
        yield Finding(severity="warning", file=".", message=text, advice=f"chmod -R go-rwx {root}")


def _open_to_others(fs: Fs, root: str, host: Host) -> Iterator[tuple[str, int, int]]:
    pending = [root]
    while pending:
        path = pending.pop()
        try:
            names, wanted = fs.listdir(path), 0o700
        except NotADirectoryError:
            names, wanted = [], 0o600
        except FileNotFoundError:
            continue
        mode = host.mode(path)
        if mode & 0o077:
            yield path, mode, wanted
        pending += [f"{path}/{name}" for name in reversed(names)]


def _check_sync(fs: Fs, root: str) -> Iterator[Finding]:
    try:
        micros = fsync_micros(fs, root)
    except OSError as error:
        yield Finding(
            severity="warning",
            file=".",
            message=f"cannot be written to: {error.strerror or error}",
            advice="a server cannot start here",
        )
        return
    if micros < FSYNC_PLAUSIBLE_MICROS:
        yield Finding(
            severity="warning",
            file=".",
            message=f"a sync takes {micros:.1f} µs, which no disk can do: it may not reach the disk at all",
            advice="a power cut may then take acked records; fine on tmpfs or with syncs switched off on purpose",
        )


def fsync_micros(fs: Fs, directory: str) -> float:
    """The median time of a small write with its sync, on a temporary file there."""
    path = f"{directory}/{_PROBE}"
    if fs.exists(path):
        fs.unlink(path)
    file = fs.open(path, "create")
    try:
        times: list[float] = []
        for number in range(FSYNC_TRIES):
            write_all(file, bytes((number,)) * 4096, 0)
            started = perf_counter()
            file.fsync()
            times.append(perf_counter() - started)
    finally:
        file.close()
        fs.unlink(path)
    return sorted(times)[FSYNC_TRIES // 2] * 1e6
