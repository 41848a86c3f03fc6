"""What works here and what does not: Java, Python and packages on the driver and on an executor, the server, its files.

Each check says what it found, and what to do about a problem. A check that needs a failed check is left out. A problem
that only costs speed is a note: an executor that does not see the server's files reads over HTTP.
"""

import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from topics.client.sync.client import Client
from topics.errors import TopicsError
from topics.spark.jobs.connection import Connection
from topics.spark.jobs.job import EXIT_DONE, EXIT_FAILED, Report
from topics.spark.jobs.job_options import DoctorOptions
from topics.spark.jobs.spread import spread
from topics.spark.manifest import Manifest, decode_manifest
from topics.spark.session import find_java, require_java, require_packages
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_store
from topics.storage.tiers.store_id import read_store_id
from topics.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = ("pyspark", "pandas", "pyarrow", "numpy", "msgspec", "xxhash")
# Features that jobs and formats need of a server.
FEATURES: Final = ("manifest", "frames", "stage", "replace")
# At most so many topics are asked until one has files.
TOPICS_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    result: Literal["ok", "note", "bad"]
    found: str
    # What to do about it.
    fix: str = ""


class Interpreter(NamedTuple):
    """The Python of a driver or an executor."""

    version: str
    executable: str
    packages: dict[str, str | None]


def run(spark: "SparkSession | None", options: DoctorOptions) -> Report:
    """Without a session, checks that need one are left out."""
    started_s = monotonic()
    checks = [*_driver_checks(), *_session_checks(spark), *_server_checks(spark, options)]
    bad = [check for check in checks if check.result == "bad"]
    return Report(
        job="doctor",
        seconds=monotonic() - started_s,
        items_done=len(checks),
        findings=tuple(asdict(check) for check in bad),
        exit_code=EXIT_FAILED if bad else EXIT_DONE,
        detail={"checks": [asdict(check) for check in checks]},
    )


# Driver and executor.


def _driver_checks() -> Iterator[Check]:
    own = _interpreter()
    yield Check(name="driver python", result="ok", found=f"{own.version} ({own.executable})")
    for name, check in (("driver packages", require_packages), ("java", require_java)):
        try:
            check()
        except TopicsError as error:
            yield Check(name=name, result="bad", found=error.message)
        else:
            yield Check(name=name, result="ok", found=_listed(own.packages) if name != "java" else str(find_java()))


def _interpreter(_item: int = 0) -> Interpreter:
    return Interpreter(platform.python_version(), sys.executable, {name: _version(name) for name in PACKAGES})


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _listed(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'missing'}" for name, version in packages.items())


def _session_checks(spark: "SparkSession | None") -> Iterator[Check]:
    if spark is None:
        return
    yield Check(name="spark", result="ok", found=f"{spark.version}, {_where(spark)}")
    try:
        (remote,) = spread(spark, [0], _interpreter)
    except TopicsError as error:
        yield Check(
            name="executor",
            result="bad",
            found=error.message,
            fix="install topics-log[spark] where the executors run, and set PYSPARK_PYTHON to that Python",
        )
        return
    yield from _compare(_interpreter(), remote)


def _where(spark: "SparkSession") -> str:
    return spark.conf.get("spark.remote", None) or spark.conf.get("spark.master", None) or "Spark Connect"


def _compare(own: Interpreter, remote: Interpreter) -> Iterator[Check]:
    is_same = own.version.split(".")[:2] == remote.version.split(".")[:2]
    yield Check(
        name="executor python",
        result="ok" if is_same else "bad",
        found=f"{remote.version} ({remote.executable})",
        fix="" if is_same else f"set PYSPARK_PYTHON to a Python like the driver's {own.version}",
    )
    missing = [name for name in PACKAGES if remote.packages[name] is None and name != "pyspark"]
    others = [name for name in PACKAGES if remote.packages[name] != own.packages[name]]
    yield Check(
        name="executor packages",
        result="bad" if missing else "note" if others else "ok",
        found=_listed(remote.packages) if missing or others else f"as on the driver, topics {VERSION}",
        fix="install topics-log[spark] where the executors run" if missing else "",
    )


# The server.


def _server_checks(spark: "SparkSession | None", options: DoctorOptions) -> Iterator[Check]:
    try:
        client = options.client()
    except TopicsError as error:
        yield Check(name="server", result="note", found=error.message)
        return
    with client:
        try:
            health = client.health()
        except TopicsError as error:
            yield Check(
                name="server", result="bad", found=error.message, fix="start the server, or correct the address"
            )
            return
        yield Check(name="server", result="ok", found=f"{client.url}, topics {health.version}")
        missing = [name for name in FEATURES if name not in health.features]
        yield Check(
            name="server features",
            result="note" if missing else "ok",
            found=", ".join(health.features) + (f"; not there: {', '.join(missing)}" if missing else ""),
            fix="a newer server has these features" if missing else "",
        )
        yield from _file_checks(spark, client, options)


def _file_checks(spark: "SparkSession | None", client: Client, options: DoctorOptions) -> Iterator[Check]:
    try:
        manifest = _manifest_with_files(client, options.topic)
    except TopicsError as error:
        yield Check(name="server files", result="bad", found=error.message)
        return
    if manifest is None:
        yield Check(name="server files", result="note", found="no topic has a segment yet")
        return
    places: list[tuple[str, str | None]] = [("driver files", _look(_Place.of(manifest)))]
    if spark is not None:
        places.append(("executor files", spread(spark, [_Place.of(manifest)], _look)[0]))
        yield _over_http(spark, options)
    for name, problem in places:
        yield Check(
            name=name,
            result="note" if problem else "ok",
            found=problem or f"store {manifest.store_id} is there: segments are read as files",
            fix="reads go over HTTP; mount the data directory at the same path to read files" if problem else "",
        )


def _manifest_with_files(client: Client, topic: str | None) -> Manifest | None:
    names: Sequence[str] = [topic] if topic is not None else client.topics()[:TOPICS_MAX]
    for name in names:
        manifest = decode_manifest(client.manifest(name))
        if manifest.segments:
            return manifest
    return None


class _Place(NamedTuple):
    """Where a segment should be."""

    uri: str
    store_id: str

    @classmethod
    def of(cls, manifest: Manifest) -> "_Place":
        return cls(manifest.segments[0].uri, manifest.store_id)


def _look(place: _Place) -> str | None:
    """On an executor or on the driver: what is wrong with the store on this machine."""
    from topics.spark.reading.segment_files import tier_and_name

    address, _ = tier_and_name(place.uri)
    try:
        found = read_store_id(open_store(address, RealFs()))
    except (TopicsError, OSError) as error:
        return f"{address}: {error}"
    if found == place.store_id:
        return None
    return f"{address} is not there" if found is None else f"{address} is another store, {found}"


def _over_http(spark: "SparkSession", options: DoctorOptions) -> Check:
    (problem,) = spread(spark, [options.resolved()], _ask)
    return Check(
        name="executor http",
        result="bad" if problem else "ok",
        found=problem or f"{options.address()} answers",
        fix="executors must reach the server by this address, with the key where it is looked for" if problem else "",
    )


def _ask(connection: Connection) -> str | None:
    try:
        with connection.client() as client:
            client.topics("no such topic")
    except TopicsError as error:
        return error.message
    return None
