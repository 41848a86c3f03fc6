"""A Delta table, by way of delta-rs: opens it, reads its log, commits files that are there already.

The library decides between writers: it makes the next entry of the log only if there is none, with a hard link in a
folder and with a conditional put in a bucket. It refuses a commit when another one since the version that was read has
an application transaction of the same name, or has removed the same files.

The library syncs no file. In a folder this module syncs each entry of the log, and each file that the library wrote,
before it calls them committed.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from topics.errors import FutureVersion, TopicsError
from topics.spark.lake.state import SEQ_MAX, LakeDamaged, LakeFile, digest_in
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import path_of_address
from topics.storage.tiers.store import SharedStore

LOG: Final = "_delta_log"
READS_AT_ONCE: Final = 8
# Tables with deletion vectors or renamed columns need readers of a higher version. Files are read here as they are.
READER_VERSION_MAX: Final = 1


class CommitRefused(TopicsError):
    """Another commit came first, and changed the same things."""

    code = "commit_refused"


class Table:
    """A table in one process, at the newest version that was read. Not thread-safe."""

    def __init__(
        self,
        store: SharedStore,
        schema: pa.Schema,
        *,
        folder: str = "",
        partition_by: Sequence[str] = (),
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        self.address = f"{store.address}/{folder}".rstrip("/")
        self._store = store
        self._folder = folder
        self._schema = schema
        self._partition_by = list(partition_by)
        self._configuration = dict(configuration or {})
        self._options = _storage_options(self.address)
        self._fs = None if path_of_address(self.address) is None else RealFs()
        self._opened: DeltaTable | None = None

    def refresh(self) -> int:
        """Reads the newest version; -1 when there is no table."""
        with _translated(self.address):
            if self._opened is None:
                self._opened = self._open()
            else:
                self._opened.update_incremental()
        return -1 if self._opened is None else self._opened.version()

    def at(self, version: int) -> "Table":
        """The table as it was. Raises `LakeDamaged` when there is no such version."""
        older = Table(self._store, self._schema, folder=self._folder, partition_by=self._partition_by)
        with _translated(self.address):
            older._opened = self._open(version)
        return older

    def _open(self, version: int | None = None) -> DeltaTable | None:
        try:
            table = DeltaTable(self.address, version=version, storage_options=self._options)
        except TableNotFoundError:
            return None
        if table.protocol().min_reader_version > READER_VERSION_MAX:
            raise FutureVersion(
                f"{self.address}: another program has given the table features that need reader version "
                f"{table.protocol().min_reader_version}; this one knows {READER_VERSION_MAX}"
            )
        return table

    @property
    def delta(self) -> DeltaTable:
        """The library's own object, at the version that was read."""
        assert self._opened is not None, "a table that is there"
        return self._opened

    def commits(self, versions: Iterable[int]) -> list[dict[str, Any]]:
        """What these commits say about themselves. The library would hold up all threads while it asks a bucket."""
        with ThreadPoolExecutor(READS_AT_ONCE) as threads:
            return list(threads.map(self._commit_info, versions))

    def _commit_info(self, version: int) -> dict[str, Any]:
        name = f"{self._folder}/{LOG}/{version:020d}.json".lstrip("/")
        try:
            lines = self._store.read_range(name, 0, self._store.size(name)).splitlines()
            actions = [msgspec.json.decode(line) for line in lines if line.strip()]
        except FileNotFoundError:
            raise LakeDamaged(
                f"{self.address}: the log has no entry {version}, which says what is in the lake; bring back {name}"
            ) from None
        except msgspec.DecodeError as error:
            raise LakeDamaged(f"{self.address}/{name} is not readable: {error}") from error
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        return {**info, "version": version}

    def add_actions(self) -> list[dict[str, Any]]:
        """The files that count, each with its path, sizes, statistics and values of partitions."""
        with _translated(self.address):
            rows: list[dict[str, Any]] = pa.table(self.delta.get_add_actions(flatten=True)).to_pylist()
        for row in rows:
            row["path"] = unquote(row["path"])
        return rows

    # Changes.

    def create(self) -> None:
        """Makes an empty table, unless there is one."""
        if self.refresh() >= 0:
            return
        # Another process may make it first.
        with suppress(DeltaError):
            DeltaTable.create(
                self.address,
                self._schema,
                partition_by=self._partition_by,
                configuration=self._configuration,
                storage_options=self._options,
            )
        if self.refresh() < 0:
            raise LakeDamaged(f"{self.address}: a table cannot be created there")
        self._sync_log(0)

    def create_with(self, adds: Iterable[AddAction], metadata: Mapping[str, Any]) -> None:
        """Makes a table that has these files from its first version on."""
        with _translated(self.address):
            create_table_with_add_actions(
                self.address,
                Schema.from_arrow(self._schema),
                list(adds),
                partition_by=self._partition_by,
                configuration=self._configuration,
                storage_options=self._options,
                commit_properties=CommitProperties(custom_metadata=dict(metadata)),
            )
        self.refresh()
        self._sync_log(0)

    def commit(
        self,
        adds: Iterable[AddAction] = (),
        removes: Iterable[RemoveAction] = (),
        *,
        transactions: Mapping[str, int],
        metadata: Mapping[str, Any],
    ) -> None:
        """Makes the actions true in one step; the files must be durable. Raises `CommitRefused`.

        A call that raises may have committed, when the answer of a bucket was lost: the metadata tells.
        """
        before = self.delta.version()
        properties = CommitProperties(
            custom_metadata=dict(metadata),
            # The library would commit after an `optimize` that has merged the files which this commit removes.
            max_commit_retries=0,
            app_transactions=[Transaction(name, version) for name, version in transactions.items()],
        )
        with _translated(self.address):
            self.delta.create_write_transaction(
                [*adds, *removes], "append", self._schema, self._partition_by, commit_properties=properties
            )
        self.synced(since=before)

    def compact(
        self, filters: "list[tuple[str, str, Any]] | None", *, target_bytes: int, writing: WriterProperties
    ) -> dict[str, Any]:
        """Merges small files of a partition. Returns what the library counts. Raises `CommitRefused`."""
        before = self.delta.version()
        known = {row["path"] for row in self.add_actions()}
        with _translated(self.address):
            found: dict[str, Any] = self.delta.optimize.compact(
                filters, target_size=target_bytes, writer_properties=writing
            )
        self.refresh()
        self.synced(since=before, files=(row["path"] for row in self.add_actions() if row["path"] not in known))
        return found

    def vacuum(self, hours: int, *, dry_run: bool) -> list[str]:
        """Removes files that have not counted for so many hours, and files that no commit names; returns them."""
        before = self.delta.version()
        with _translated(self.address):
            found = self.delta.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
        self.synced(since=before)
        return found

    def restore(self, version: int) -> None:
        """Makes the table what it was at a version, as a new version."""
        before = self.delta.version()
        with _translated(self.address):
            self.delta.restore(version)
        self.synced(since=before)

    def synced(self, *, since: int, files: Iterable[str] = ()) -> None:
        """Makes the versions after `since` durable, and files that the library wrote."""
        newest = self.refresh()
        if self._fs is None:
            return
        for name in files:
            self._sync_file(f"{self._path}/{name}")
        for version in range(since + 1, newest + 1):
            self._sync_log(version)

    @property
    def _path(self) -> str:
        path = path_of_address(self.address)
        assert path is not None, "only a folder is synced"
        return path

    def _sync_log(self, version: int) -> None:
        if self._fs is not None:
            self._sync_file(f"{self._path}/{LOG}/{version:020d}.json")

    def _sync_file(self, path: str) -> None:
        assert self._fs is not None
        file = self._fs.open(path, "read")
        try:
            file.fsync()
        finally:
            file.close()
        self._fs.sync_dir(os.path.dirname(path))


@contextmanager
def _translated(address: str) -> Iterator[None]:
    """Errors of the library as ours."""
    try:
        yield
    except CommitFailedError as error:
        raise CommitRefused(f"{address}: {_first_line(error)}") from error
    except DeltaError as error:
        raise LakeDamaged(f"{address}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _storage_options(address: str) -> dict[str, str] | None:
    """The library takes keys and region from the environment. The same settings of the endpoint as for our own puts."""
    if path_of_address(address) is not None:
        return None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        return {}
    return {
        "aws_endpoint": endpoint,
        "aws_virtual_hosted_style_request": "false",
        "aws_allow_http": str(endpoint.startswith("http:")).lower(),
    }


# Actions.


def add_action(file: LakeFile, *, now_ms: int) -> AddAction:
    """With the statistics by which readers leave out files."""
    bounds = {
        "minValues": {"seq": file.first_seq, "ts": _time_text(file.first_ts_ms)},
        "maxValues": {"seq": file.last_seq, "ts": _time_text(file.last_ts_ms)},
    }
    stats = {"numRecords": file.records, **bounds, "nullCount": {"seq": 0, "ts": 0}}
    partition = {"topic": file.topic, "epoch": str(file.epoch)}
    return AddAction(file.name, file.bytes, partition, now_ms, True, msgspec.json.encode(stats).decode())


def remove_action(file: LakeFile, *, now_ms: int) -> RemoveAction:
    partition: dict[str, str | None] = {"topic": file.topic, "epoch": str(file.epoch)}
    return RemoveAction(file.name, True, now_ms, size=file.bytes, partition_values=partition)


def _time_text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def files_of(rows: Iterable[Mapping[str, Any]], digests: Mapping[str, str]) -> Iterator[LakeFile]:
    for row in rows:
        name = row["path"]
        yield LakeFile(
            name=name,
            topic=row["partition.topic"],
            epoch=row["partition.epoch"],
            first_seq=_stat(row, "min.seq", 0),
            last_seq=_stat(row, "max.seq", SEQ_MAX),
            first_ts_ms=_ms(row.get("min.ts")),
            last_ts_ms=_ms(row.get("max.ts")),
            records=row["num_records"] or 0,
            bytes=row["size_bytes"],
            digest=digests.get(name) or digest_in(name),
        )


def _stat(row: Mapping[str, Any], name: str, otherwise: int) -> int:
    found: int | None = row.get(name)
    return otherwise if found is None else found


def _ms(time: datetime | None) -> int:
    return 0 if time is None else round(time.timestamp() * 1000)
