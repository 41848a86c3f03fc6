"""`run`: runs a declarative pipeline project with `spark-pipelines`, and avoids three of its failures.

rule 1  `--master` is never given: Spark's command adds `--remote local`, and refuses both together. A cluster is used
        through a Connect server.
rule 2  A project must not call `dataSource.register`: the command fails after all flows have completed. Spark finds our
        formats by their names.
rule 3  Tables need a catalog that is kept. Otherwise a second run finds the folders of the tables and refuses. So a
        catalog is kept below the project, unless another one is set.
"""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from topics.errors import TopicsError
from topics.spark.errors import BadOption, Conflict
from topics.spark.jobs.frozen import STATE_DEFAULT
from topics.spark.jobs.job import EXIT_DONE, EXIT_FAILED, Report
from topics.spark.jobs.job_options import RunOptions
from topics.spark.option_values import ENDPOINT_VARIABLE
from topics.storage.fs import Fs, RealFs, read_file, write_atomic
from topics.storage.tiers.addresses import file_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of the Connect server that `spark-pipelines` starts. Its client cannot be told another one.
CONNECT_PORT: Final = 15002
SPEC_NAMES: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
_CATALOG: Final = "spark.sql.catalogImplementation"
_FLOW: Final = re.compile(r"Flow (?P<name>\S+) (?:is|has) (?P<state>[A-Z]+)")

_LAST_STATES: Final = frozenset({"COMPLETED", "FAILED", "SKIPPED", "STOPPED", "EXCLUDED", "IDLE"})
# So many last lines of the output are searched for the reason of a failure.
_LINES_KEPT: Final = 40


def run(spark: "SparkSession | None", options: RunOptions, *, tell: Callable[[str], None] | None = None) -> Report:
    """The pipeline makes its session itself, so that `spark` is not used. `tell` gets a line for each flow that ends.

    Raises `BadOption` for a project that cannot run.
    """
    del spark
    fs = RealFs()
    spec = find_spec(fs, os.path.abspath(options.spec))
    check_project(fs, os.path.dirname(spec))
    spec = with_storage(fs, spec, options)
    conf = {**_own_conf(fs, spec, options), **options.conf}
    if options.remote is None:
        require_free_port()
    started_s = monotonic()
    flows, ending, last_lines = _follow(command_line(spec, options, conf), _environment(options, conf), tell)
    if ending != 0:
        raise TopicsError(f"the pipeline failed with exit code {ending}: {_reason(last_lines)}")
    failed = [name for name, state in flows.items() if state == "FAILED"]
    return Report(
        job="run",
        seconds=monotonic() - started_s,
        items_done=sum(state == "COMPLETED" for state in flows.values()),
        items_skipped=sum(state in {"SKIPPED", "EXCLUDED"} for state in flows.values()),
        findings=tuple({"problem": "flow failed", "flow": name} for name in failed),
        exit_code=EXIT_FAILED if failed else EXIT_DONE,
        detail={"spec": spec, "flows": flows},
    )


# Checks before the start.


def require_free_port(port: int = CONNECT_PORT) -> None:
    """Raises `Conflict` when another pipeline runs here: Spark gives the server of every local one the same port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise Conflict(
                f"port {port} of this machine is in use, probably by another `topics pipeline run`: run it when the "
                "other one has ended, or start a Connect server for both and give --remote"
            ) from error


def find_spec(fs: Fs, path: str) -> str:
    if not fs.exists(path):
        raise BadOption(f"{path} is not there; give the spec of a pipeline, or the folder that it is in")
    if path.endswith((".yml", ".yaml")):
        return path
    found = [name for name in SPEC_NAMES if fs.exists(f"{path}/{name}")]
    if not found:
        raise BadOption(f"{path} has no {SPEC_NAMES[0]}; `spark-pipelines init --name NAME` makes a project")
    return f"{path}/{found[0]}"


def check_project(fs: Fs, folder: str) -> None:
    """Raises `BadOption` for a line of the project that would fail late."""
    for path in _python_files(fs, folder):
        for number, line in enumerate(read_file(fs, path).decode(errors="replace").splitlines(), 1):
            if re.search(r"^[^#]*\bdataSource\.register\(", line):
                raise BadOption(
                    f"{path}:{number}: a pipeline must not register data sources: it would fail after its last flow; "
                    'delete the line: format("topics") is found where the package topics is installed'
                )


def _python_files(fs: Fs, folder: str) -> Iterator[str]:
    for name in fs.listdir(folder):
        path = f"{folder}/{name}"
        if name.endswith(".py"):
            yield path
        elif not name.startswith((".", "_")) and "." not in name:
            try:
                yield from _python_files(fs, path)
            except NotADirectoryError:
                continue


def _own_conf(fs: Fs, spec: str, options: RunOptions) -> dict[str, str]:
    """Our defaults for the session; `conf` of the options wins. A Connect server has its own settings."""
    if options.remote is not None:
        return {}
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # The Connect server of the session listens on this machine only; by default it listens on all addresses.
        "spark.connect.grpc.binding.address": "127.0.0.1",
    }
    if _has_catalog(options.conf) or _has_catalog(_configuration(fs, spec)):
        return conf
    state = os.path.abspath(options.state or f"{os.path.dirname(spec)}/{STATE_DEFAULT}")
    fs.makedirs(state)
    database = f"jdbc:derby:;databaseName={state}/metastore_db;create=true"
    return {
        **conf,
        _CATALOG: "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": database,
        "spark.sql.warehouse.dir": f"{state}/warehouse",
        "spark.driver.extraJavaOptions": shlex.quote(f"-Dderby.stream.error.file={state}/derby.log"),
    }


def with_storage(fs: Fs, spec: str, options: RunOptions) -> str:
    """The spec itself; or a copy beside it with a place for checkpoints below the project, if the spec names none."""
    text = read_file(fs, spec).decode()
    if "storage" in _members(fs, spec):
        return spec
    folder = os.path.dirname(spec)
    state = os.path.abspath(options.state or f"{folder}/{STATE_DEFAULT}")
    copy = f"{folder}/.{STATE_DEFAULT.lstrip('.')}.yml"
    place = json.dumps(file_address(f"{state}/storage"))
    write_atomic(fs, copy, f"storage: {place}\n{text}".encode())
    return copy


def _has_catalog(names: Iterable[str]) -> bool:
    return any(name == _CATALOG or name.startswith("spark.sql.catalog.") for name in names)


def _members(fs: Fs, spec: str) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    try:
        members = yaml.safe_load(read_file(fs, spec))
    except yaml.YAMLError as error:
        raise BadOption(f"{spec} is not YAML: {error}") from error
    if not isinstance(members, dict):
        raise BadOption(f"{spec} is not the spec of a pipeline: it has no members")
    return members


def _configuration(fs: Fs, spec: str) -> dict[str, Any]:
    found = _members(fs, spec).get("configuration") or {}
    if "spark.master" in found:
        raise BadOption(f"{spec}: a pipeline has no master; start a Connect server on the cluster and give --remote")
    return dict(found)


def command_line(spec: str, options: RunOptions, conf: dict[str, str]) -> list[str]:
    import pyspark

    command = [f"{os.path.dirname(pyspark.__file__)}/bin/spark-pipelines", "dry-run" if options.dry_run else "run"]
    if options.remote is not None:
        command += ["--remote", options.remote, *_conf_flags(conf)]
    command += ["--spec", spec]
    if options.full_refresh and not options.dry_run:
        command.append("--full-refresh-all")
    return command


def _conf_flags(conf: dict[str, str]) -> list[str]:
    return [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]


def _environment(options: RunOptions, conf: dict[str, str]) -> dict[str, str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if options.remote is None:
        # Not as flags: the command passes flags on in groups, and Python reads only the last group.
        given = shlex.join([*_conf_flags(conf), "pyspark-shell"])
        environment["PYSPARK_SUBMIT_ARGS"] = given
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if options.endpoint is not None:
        environment[ENDPOINT_VARIABLE] = options.endpoint
    return environment


# The run.


def _follow(
    command: list[str], environment: dict[str, str], tell: Callable[[str], None] | None
) -> tuple[dict[str, str], int, list[str]]:
    """The last state of each flow, the exit code, and the end of the output."""
    flows: dict[str, str] = {}
    last_lines: deque[str] = deque(maxlen=_LINES_KEPT)
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last_lines.append(line.strip())
            if (seen := _FLOW.search(line)) is None:
                continue
            name, state = seen["name"], seen["state"]
            flows[name] = state
            if state in _LAST_STATES and tell is not None:
                tell(f"{name}: {state.lower()}")
        code = process.wait()
    return flows, code, list(last_lines)


def _reason(lines: list[str]) -> str:
    """The last line with an error class of Spark, or else the last line."""
    told = [line for line in lines if line and not line.startswith(("at ", "File ", "[Stage"))]
    named = [line for line in told if re.search(r"\[[A-Z][A-Z_.]+\]|Error|Exception", line)]
    return (named or told or ["it said nothing"])[-1]
