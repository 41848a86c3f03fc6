"""Rows of the embedded engine. Each load runs in a process of its own, with the package that is measured."""

import json
import signal
import subprocess
import sys
from typing import Any

from topics.bench import storage
from topics.bench.processes import ProcessFailed, environment
from topics.bench.report import Row
from topics.bench.setting import Setting


def append_batches(setting: Setting) -> list[Row]:
    rate = _run(setting, "append_batches", setting.directory, setting.count(4000))
    return [Row("append, 100-record batches, disk", rate / 1e3, "K records/s", floor=400)]


def read_pages(setting: Setting) -> list[Row]:
    tail, sealed = _run(setting, "read_pages", setting.directory, setting.count(2000))
    return [
        Row("read, 1000-record pages, tail", tail / 1e6, "M records/s", floor=5),
        Row("read, 1000-record pages, sealed", sealed / 1e6, "M records/s", note="checksums verified"),
    ]


def fsync_writers(setting: Setting) -> list[Row]:
    result = _run(setting, "fsync_writers", setting.directory, 64, setting.count(40_000))
    return [
        Row("raw loop: write each, fdatasync per 64", result["raw_each"] / 1e3, "K records/s"),
        Row("raw loop: one write and fdatasync per 64", result["raw_joined"] / 1e3, "K records/s"),
        Row("fsync, 64 writers, encoded before", result["encoded"] / 1e3, "K records/s"),
        Row("fsync, 64 writers, from JSON text", result["from_json"] / 1e3, "K records/s"),
        Row("fsync, ratio to the raw loop (write each)", 100 * result["encoded"] / result["raw_each"], "%", floor=60),
        Row("fsync, records per sync", result["records_per_sync"], ""),
    ]


def reopen(setting: Setting) -> list[Row]:
    """One process writes the records and is killed. Another process opens the directory."""
    records = max(100, setting.count(1_000_000))
    records -= records % 100
    rows = [
        Row("open an empty directory", _run(setting, "open_empty", setting.directory) * 1e3, "ms", ceiling=200),
    ]
    for where, seconds_max in (("segments", 0.5), ("the WAL", 0.6)):
        path = f"{setting.directory}/{where}"
        _run(setting, "fill_and_die", path, records, where == "segments")
        opened = _run(setting, "reopen", path, records)
        what = f"open after kill -9, {records} records in {where}"
        rows.append(Row(what, opened["seconds"], "s", ceiling=seconds_max))
        rows.append(Row(f"{what}, memory", opened["resident_mib"], "MiB", ceiling=150))
    return rows


def _run(setting: Setting, load: str, *arguments: Any) -> Any:
    # -P: the folder of the program has modules named like those of the standard library.
    command = [sys.executable, "-P", storage.__file__, load, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(setting.python_path), check=False)
    if done.returncode == -signal.SIGKILL and load == "fill_and_die":
        return None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        raise ProcessFailed(f"the load {load} ended with status {done.returncode}: {last[0]}")
    return json.loads(done.stdout)
