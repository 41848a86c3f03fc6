"""Every command of `topics` with arguments that do something: what it prints, and its exit code.

The cases of a list follow each other: later ones use what earlier ones made.
"""

import shlex
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import typer

from topics.cli.main import app

Words = tuple[str, ...]


class Case(NamedTuple):
    """`{url}` is the server; `{dir}` a directory that it has open, and `{wal}` and others are files there."""

    command: str
    # A pattern that is in what it prints; None when a test cannot have what the command needs, such as a bucket.
    told: str | None
    code: int = 0
    # The extra without which the command only says how to install it.
    extra: str | None = None
    # The same at a server with streams, if it is not the same.
    told_with_streams: str | None = None

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)


def hint(extra: str) -> str:
    return rf"pip install 'topics-log\[{extra}\]'"


NO_STREAMS: Final = "topics serve --streams"
# Where JAVA_HOME leads nowhere.
NO_JAVA: Final = "cannot be started .*; set JAVA_HOME"

# For a server without topics of these names. With streams it has a stream `s` with a topic `t`.
AT_A_SERVER: Final = [
    Case("config show", "port "),
    Case("config check", "no problem found"),
    Case("config reference", "### Network"),
    Case("write orders one.jsonl", "1 record"),
    Case("topic ls", "orders"),
    Case("topic show orders", "head_seq +1"),
    Case("topic create jobs --queue --dead-letter dead --max-deliveries 1", "is created"),
    Case("topic set orders --cap-records 10", "-> 10"),
    Case("topic delete orders --before-seq 1 --yes", "0 records"),
    Case("import redis://127.0.0.1:1/s --topic copy", "Redis at 127.0.0.1:1 does not answer", 1, "redis"),
    Case("import nats://127.0.0.1:1/s --topic copy", "NATS at 127.0.0.1:1 does not answer", 1, "nats"),
    Case("import kafka://127.0.0.1:1/t --topic copy", None, extra="kafka"),
    Case("read orders", '"id":1'),
    Case("tail orders --no-follow", '"id":1'),
    Case("write jobs three.jsonl", "3 records"),
    Case("queue ls", "jobs"),
    Case("queue show jobs", "ready"),
    Case("queue claim jobs -n 2", "leased"),
    Case("queue extend jobs 1 --lease 5s", "DEADLINE"),
    Case("queue ack jobs 1", "1 job acked"),
    Case("queue nack jobs 2", "1 job"),
    Case("work jobs -n 1 -- cat", '"id":3'),
    Case("write jobs one.jsonl", "1 record"),
    Case("queue work jobs -n 1 -- cat", '"id":1'),
    Case("queue redrive jobs", "moved"),
    Case("router create copies orders copied", "is created"),
    Case("router ls", "copies"),
    Case("router show copies", "copied"),
    Case("router rm copies --yes", "is removed"),
    Case("group move orders readers start", "readers"),
    Case("group ls orders", "readers"),
    Case("group show orders readers", "lag"),
    Case("group commit orders readers 1", "1"),
    Case("group rm orders readers --yes", "is removed"),
    Case("stream ls", NO_STREAMS, 1, told_with_streams="\\bs\\b"),
    Case("stream show s", NO_STREAMS, 1, told_with_streams="\\bt\\b"),
    Case("stream read s/t", NO_STREAMS, 1, told_with_streams='"offset":1'),
    Case("stream tail s/t --no-follow", NO_STREAMS, 1, told_with_streams='"offset":1'),
    Case("backup take backups --server {url}", "verified"),
    Case("backup ls backups", "RECORDS"),
    Case("backup verify backups", "no damage"),
    Case("restore backups --data-dir restored", "records of point"),
    Case("backup take s3://bucket/prefix --server {url}", None, extra="s3"),
    Case("check", "OK"),
    Case("top -n 1", "orders"),
    Case("errors", "topic_full"),
    Case("context add local --server {url}", "local"),
    Case("context use local", "local"),
    Case("context ls", "local"),
    Case("context show", "server"),
    Case("context test", "answers in"),
    Case("context rm local", "local"),
    Case("generate config", "#port = 4000"),
    Case("generate systemd", "ExecStart="),
    Case("generate dockerfile", "ENTRYPOINT"),
    Case("generate compose", "services:"),
    Case("generate grafana", "panels"),
    Case("generate alerts", "groups:"),
    Case("generate man", "SEE ALSO"),
    Case("demo --server {url} --seconds 0", "0 missing"),
    Case("demo --spark", None, extra="spark"),
    Case("bench append-1 --server {url} --seconds 0.1", "records/s"),
    Case("bench spark --seconds 0.1", None, extra="spark"),
    Case("version", "^topics "),
    Case("verify restored", "no damage"),
    Case("verify restored --cold s3://bucket/prefix", None, extra="s3"),
    Case("doctor restored", "no damage"),
    Case("topic rm copied --yes", "is removed"),
    Case("dump restored/STORE", "no file that can be dumped", 1),
    Case("dump state.messages", "^$", extra="streams"),
    Case("serve --data-dir other --streams", None, extra="streams"),
    Case("serve --data-dir other --cold-dir s3://bucket/prefix", None, extra="s3"),
    Case("pipeline doctor", "server features", 1, "spark"),
    Case("pipeline verify", NO_JAVA, 1, "spark"),
    Case("pipeline stats", NO_JAVA, 1, "spark"),
    Case("pipeline import a.parquet --topic orders", NO_JAVA, 1, "spark"),
    Case("pipeline replay orders --to again", NO_JAVA, 1, "spark"),
    Case("pipeline archive lake", NO_JAVA, 1, "spark"),
    Case("pipeline optimize lake", "there is no lake at", 1, "spark"),
    Case("pipeline vacuum lake", "there is no lake at", 1, "spark"),
    Case("pipeline convert-lake lake", "there is no lake of the older form at", 1, "spark"),
    Case("pipeline restore --topic orders --to again --lake lake", NO_JAVA, 1, "spark"),
    Case("pipeline rebuild-index", NO_JAVA, 1, "spark"),
    Case("pipeline compact --purge", NO_JAVA, 1, "spark"),
    Case("pipeline reencode streams again", NO_JAVA, 1, "spark"),
    Case("pipeline run pipeline.yml", NO_JAVA, 1, "spark"),
    Case("pipeline sql 'SELECT 1'", NO_JAVA, 1, "spark"),
    Case("pipeline package out.zip", "archive: ", extra="spark"),
]

# For a directory that a server has open. Whatever would write there refuses.
AT_A_LIVE_DIRECTORY: Final = [
    Case("verify {dir}", r"(?s)has the directory open.*: no damage, 0 warnings"),
    Case("verify {dir} --json", '"kind":"summary".*"damage":0,.*"in_use":true'),
    Case("doctor {dir}", r"(?s)has the directory open.*: no damage"),
    Case("doctor {dir} --repair --yes", "{dir} is in use; stop the server first", 1),
    Case("dump {wal}", '"type":"append".*"checksum_ok":true'),
    Case("dump {snapshot}", '"type":"snapshot"'),
    Case("dump {data}", '"seq":.*"checksum_ok":true'),
    Case("dump {index}", '"has_tag":'),
    Case("dump {dir}/STORE", "no file that can be dumped", 1),
    Case("dump {dir}/.topics.lock", "no file that can be dumped", 1),
    Case("dump {dir}", "Is a directory", 1),
    Case("backup take backups --server {url}", "verified"),
    Case("backup take other-backup --data-dir {dir}", "is open in a server or a program; back it up with --server", 1),
    Case("backup take {dir} --server {url}", "is not empty, and it is no backup", 1),
    Case("backup ls {dir}", "{dir} has no backup", 1),
    Case("backup verify {dir}", "{dir} has no backup", 1),
    Case("restore backups --data-dir {dir}", "{dir} is not empty: a restore never writes over data", 1),
    Case("restore {dir} --data-dir restored", "{dir} has no backup", 1),
    Case("serve --data-dir {dir} --port 0", "{dir} is in use by process [0-9]+", 1),
    Case("demo --data-dir {dir} --port 0 --seconds 0", "{dir} is in use by process [0-9]+", 1),
    Case("check --data-dir {dir}", "^OK"),
    Case("config show --data-dir {dir}", "data_dir +{dir}"),
    Case("config check --data-dir {dir}", "no problem found"),
    Case("bench --show {dir}", "cannot read {dir}", 1),
    Case("write kept {dir}", "{dir}: Is a directory", 1),
    Case("pipeline optimize {dir}", "there is no lake at {dir}", 1, "spark"),
    Case("pipeline vacuum {dir}", "there is no lake at {dir}", 1, "spark"),
    Case("pipeline convert-lake {dir}", "there is no lake of the older form at {dir}", 1, "spark"),
    Case("pipeline package {dir}", "{dir} must end with .zip", 1, "spark"),
]

# For the directory of streams of such a server.
AT_LIVE_STREAMS: Final = [
    Case("verify {dir}", r"(?s)an engine has the directory open.*: no damage, 0 warnings"),
    Case("verify {dir} --json", '"kind":"summary".*"damage":0,.*"in_use":true'),
    Case("doctor {dir}", r"(?s)an engine has the directory open.*: no damage"),
    Case("doctor {dir} --repair --yes", "{dir} is in use; stop the server first", 1),
    Case("dump {dir}/state.messages", '"command":"create_stream"'),
    Case("dump {dir}/info.json", '"flavour"'),
    Case("dump {log}", '"offset":0,.*"checksum_ok":true'),
    Case("dump {message_index}", '"position":0'),
    Case("dump {dir}/runtime/current_config.toml", "no file that can be dumped", 1),
    Case("backup take other-backup --data-dir {dir}", "{dir} is no data directory", 1),
    Case("restore backups --data-dir {dir}", "{dir} is not empty: a restore never writes over data", 1),
    Case("serve --data-dir other --streams-dir {dir} --streams-port 0 --port 0", "{dir} is in use by another", 1),
    Case("check --data-dir {dir}", "^OK"),
    Case("config check --streams-dir {dir} --streams", "no problem found"),
]

# Jobs on Spark, for a server with streams: what it answers, and what they make of the directories that it has open.
ON_SPARK: Final = [
    Case("pipeline doctor", "executor files"),
    Case("pipeline verify", "verify: [0-9]+ done"),
    Case("pipeline verify --path {dir} --streams {dir}/streams", "verify: [0-9]+ done"),
    Case("pipeline stats", "totals: "),
    Case("pipeline stats --path {dir}", "totals: "),
    Case("pipeline import {one} --topic imported --create", "import: 1 done"),
    Case("pipeline replay kept --to again --create", "replay: 1 done"),
    Case("pipeline archive {lake} --topic kept --seal", "archive: 1 done"),
    Case("pipeline archive {lake}-of-files --path {dir}", "archive: "),
    Case("pipeline archive {dir}", "{dir} is no place for files of a job", 1),
    Case("pipeline optimize {lake}", "optimize: "),
    Case("pipeline vacuum {lake}", "vacuum: "),
    Case("pipeline convert-lake {lake}", "there is no lake of the older form", 1),
    Case("pipeline restore --lake {lake} --topic kept --to restored", "restore: 1 done"),
    Case("pipeline restore --path {dir} --topic kept --into-dir {dir}", "{dir} is served|{dir} is not empty", 1),
    Case("pipeline rebuild-index", "rebuild-index: "),
    Case("pipeline rebuild-index --path {dir}", "{dir} is served; give its endpoint", 4),
    Case("pipeline rebuild-index --streams {dir}/streams", "{dir}/streams is served; stop the server first", 4),
    Case("pipeline compact --purge", "purge: "),
    Case(
        "pipeline compact --latest-by-tag --topic kept --into parquet:{dir} --mode overwrite",
        "{dir} is no place for files of a job",
        1,
    ),
    Case("pipeline reencode {dir}/streams other-streams", "{dir}/streams is in use by another process", 4),
    Case("pipeline sql 'SELECT 1 AS one'", '"one":1'),
    Case("pipeline sql 'SELECT 1' --into parquet:{dir} --mode overwrite", "{dir} is no place for files of a job", 1),
    Case("pipeline run {dir}", "{dir} has no spark-pipeline.yml", 1),
    Case("pipeline package jobs.zip", "archive: "),
]

# Of an option or argument that leads to data. What `topics generate` writes goes wherever it is told to.
_DATA_METAVARS: Final = {"DIR", "PATH", "SRC", "LAKE", "NEW_DIR", "SPEC", "OUT.zip"}


def commands() -> list[Words]:
    """The words of every command, as the parser knows them."""
    return [path for path, _ in _leaves(typer.main.get_command(app))]


def commands_with_a_directory() -> list[Words]:
    return [
        path
        for path, command in _leaves(typer.main.get_command(app))
        if path[0] != "generate"
        and any(
            one.metavar in _DATA_METAVARS or (one.param_type_name == "argument" and "FILE" in one.metavar)
            for one in command.params
        )
    ]


def covered(cases: Iterable[Case]) -> set[Words]:
    words = [case.words for case in cases]
    return {tuple(each[:2]) for each in words} | {(each[0],) for each in words}


def _leaves(command: Any, path: Words = ()) -> Iterator[tuple[Words, Any]]:
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from _leaves(command.get_command(None, name), (*path, name))
