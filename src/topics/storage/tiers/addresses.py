"""Addresses of tiers: a path, `file:///path` or `s3://bucket/prefix`. Only this module knows all kinds of stores."""

import os
import re

from topics.errors import StartRefused
from topics.storage.fs import Fs
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.shared_folder import SharedFolder
from topics.storage.tiers.store import SegmentStore, SharedStore


def open_store(address: str, fs: Fs) -> SegmentStore:
    """The tier at an address. Touches neither disk nor network."""
    path = _path_of_store(address)
    return _open_s3(address) if path is None else FolderStore(fs, path)


def open_shared_store(address: str, fs: Fs) -> SharedStore:
    """The shared store at an address. Touches neither disk nor network.

    A bucket gets more time here than as a cold tier: jobs wait for it, not a server with its clients.
    """
    path = _path_of_store(address)
    return _open_shared_s3(address) if path is None else SharedFolder(fs, path)


def _path_of_store(address: str) -> str | None:
    """The folder of a store; None for a bucket. Raises `StartRefused` for an address of no known kind."""
    if address.startswith("s3://"):
        return None
    if address.startswith("file:"):
        return _path_of_file_address(address)
    if not address or "://" in address:
        raise StartRefused(f'"{address}" is no address of a cold tier: give a path, file:///path or s3://bucket/prefix')
    return os.path.abspath(address)


def _open_s3(address: str) -> SegmentStore:
    try:
        from topics.storage.tiers.s3_store import S3Store
    except ModuleNotFoundError as error:
        raise _missing_obstore(error) from error
    return S3Store(address)


def _open_shared_s3(address: str) -> SharedStore:
    try:
        from topics.storage.tiers.s3_store import S3Bounds, S3Store
    except ModuleNotFoundError as error:
        raise _missing_obstore(error) from error
    return S3Store(address, bounds=S3Bounds(connect_ms=10_000, idle_ms=30_000, transfer_ms=600_000, retries_max=5))


def _missing_obstore(error: ModuleNotFoundError) -> ModuleNotFoundError | StartRefused:
    if error.name is None or error.name.partition(".")[0] != "obstore":
        return error
    return StartRefused("a cold tier on S3 needs the package obstore: pip install 'topics-log[s3]'")


def path_of_address(address: str) -> str | None:
    """The folder that an address names; None for a bucket."""
    if address.startswith("file:"):
        return _path_of_file_address(address)
    return None if "://" in address else os.path.abspath(address)


def file_address(path: str) -> str:
    """A path as an address that `path_of_address` reads back."""
    return f"file://{path.replace('%', '%25')}"


def _path_of_file_address(address: str) -> str:
    """`file:/path`, `file:///path` or `file://localhost/path`, with %XX for other bytes."""
    rest = address.removeprefix("file:")
    if rest.startswith("//"):
        host, slash, path = rest.removeprefix("//").partition("/")
        rest = slash + path if host in {"", "localhost"} else ""
    if not rest.startswith("/"):
        raise StartRefused(f'"{address}" names no path on this machine: write it as file:///path')
    encoded = rest.encode("utf-8", "surrogateescape")
    decoded = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), encoded)
    return os.path.normpath(os.fsdecode(decoded))
