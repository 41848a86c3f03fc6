"""The rules of the house that a parser can check: layers, file access, dead modules, leftovers, names.

The tables come first and are data; think hard about the layering before editing them. Each rule is a function
from modules to findings, so that it can be shown to fail on a made-up module as well as to pass on ours.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = REPOSITORY / "src"
TESTS: Final = REPOSITORY / "tests"

# --- the tables ---------------------------------------------------------------------------------------------

# From top to bottom. A layer may import itself and the rows below its own, never a neighbour on its row.
# A row that has no code yet is fine; a module without a row is not.
ROWS: Final[tuple[tuple[str, ...], ...]] = (
    ("cli",),
    ("programs",),
    ("topics",),
    ("spark",),
    ("server",),
    ("console",),
    ("backup",),
    ("client",),
    ("embedded", "offline_view"),
    ("engine", "streams"),
    ("storage",),
    ("protocol",),
    ("formats",),
    ("clock", "forks", "limits", "errors", "results", "version"),
)

# The layer of everything directly below `topics` whose layer is not simply its own name.
LAYER_BY_NAME: Final[dict[str, str]] = {
    "": "topics",  # topics/__init__.py: re-exports the public names.
    "__main__": "cli",  # `python -m topics`.
    "interpreter": "errors",
    "bench": "programs",
    "demos": "programs",
    "stream_errors": "errors",
}

# Programs that start the command line by its name, as a user does.
STARTS_THE_COMMAND_LINE: Final = frozenset({"topics.bench.processes", "topics.demos.pipeline"})

# What a layer may not import although it lies below.
KNOWS_NOTHING_OF: Final[dict[str, frozenset[str]]] = {
    "cli": frozenset({"formats"}),  # `topics dump` asks storage.
    # The files of the web page, as bytes.
    "console": frozenset({"backup", "client", "embedded", "engine", "streams", "storage", "protocol", "formats"}),
    "spark": frozenset({"server", "embedded", "engine", "streams"}),
    "server": frozenset({"backup", "storage", "formats"}),
    "backup": frozenset({"embedded", "engine", "streams"}),
    "client": frozenset({"embedded", "engine", "streams"}),
    "formats": frozenset({"clock"}),
}

# Beside the rows: may import any of them, and nothing in the package imports it.
FAKES: Final = "testing"

# The rooms of a package (its folders, and the modules directly below it) from top to bottom, by the same rule: a room
# may import itself and the rows below its own. A package's own `__init__` may import all of them.
ROOMS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "topics.backup": (
        ("checking", "restoring", "taking"),
        ("plan", "source"),
        ("store",),
        ("format",),
        ("ranges", "times"),
    ),
    "topics.cli": (
        ("entry",),
        ("main",),
        ("bench", "config", "demo", "generate", "restore_command", "serve_command"),
        ("backup", "serve"),
        ("pipeline", "remote", "setting_flags"),
        ("late", "loading"),
        ("directory_parts", "form", "output", "progress"),
    ),
    "topics.client": (
        ("aio", "sync"),
        ("following", "job_events", "logs", "redriving"),
        ("batching", "calls", "tls", "tracing", "typed", "working"),
        ("answers", "arrow", "endpoint", "http1"),
        ("retrying", "signals"),
    ),
    "topics.engine": (
        ("starting",),
        ("checkpointing", "manifest"),
        ("engine",),
        ("queues",),
        ("bridges", "routers"),
        ("cold_columns", "groups", "writing"),
        ("core",),
        ("scheduler", "topic"),
        ("config", "ticker"),
        ("names", "pins", "runtime", "settings"),
    ),
    "topics.server": (
        ("serve",),
        ("late_imports",),
        ("api",),
        ("app",),
        ("bridges", "live", "openapi", "streams"),
        ("http",),
        ("hidden_names", "hidden_paths", "logs", "pressure", "settings", "waiting_lines"),
        ("process_figures",),
        ("metrics",),
        ("auth", "disk_gauge", "event_loop", "limits", "listening", "origins", "settings_schema", "steps", "work_pool"),
    ),
    "topics.spark": (
        ("attached", "data_sources", "jobs"),
        ("streams",),
        ("lake", "reading"),
        ("schemas", "sql_tables", "writing"),
        ("access", "free_place", "loss", "options", "shaping"),
        ("errors", "manifest", "narrowing", "option_values", "session", "watching"),
    ),
    "topics.storage": (
        ("checkpoints", "inspect"),
        ("directory", "overlay", "removal", "segments"),
        ("cold_pool", "disk_space", "snapshots", "staged_chunks", "tiers", "wal"),
        ("background", "fs", "layout"),
    ),
    "topics.streams": (
        ("embedded",),
        ("system",),
        ("inspect", "running"),
        ("directory", "metadata", "partitions", "retention"),
        ("consumers", "settings", "times"),
    ),
}

# Packages in which only the module of a class assigns the fields of its objects.
OWNED_STATE: Final = ("topics.engine",)

# What a variable or attribute of this name refers to in those packages: where two classes have a field of the same
# name, this tells which one is meant.
CLASS_BY_VARIABLE: Final[dict[str, str]] = {
    "topic": "Topic",
    "dest": "Topic",
    "source": "Topic",
    "queue": "Topic",
    "live": "LiveRecords",
    "writes": "WriteState",
    "checkpoint": "CheckpointState",
    "links": "RouterLinks",
    "leases": "LeaseTable",
    "table": "LeaseTable",
    "lease": "Lease",
    "keys": "IdempotencyKeys",
    "router": "Router",
    "write": "Write",
    "core": "Core",
    "engine": "Engine",
    "segments": "SegmentSet",
    "tail": "Tail",
    "replayed": "Replayed",
}

# Variables of those packages that are values of `formats/` or `storage/`: nobody's state in here.
VALUES_OF_LOWER_LAYERS: Final = frozenset({"end", "segment", "snapshot", "state"})

# Annotations of callbacks that belong to a caller of the engine. Only `Completions` calls them.
CALLER_CALLBACKS: Final = frozenset({"Done", "AppendDone"})

# Functions that are such callbacks themselves, wrapped around a caller's: `Completions` calls them.
WRAPS_A_CALLBACK: Final = frozenset({"_answer_created", "_answer_repeat"})

FILE_MODULES: Final = frozenset({"fcntl", "glob", "mmap", "pathlib", "shutil", "sqlite3", "tempfile"})
SOCKET_MODULES: Final = frozenset({"select", "selectors", "socket", "socketserver", "ssl"})
TIME_MODULES: Final = frozenset({"datetime", "sched", "time"})

# Foreign modules that a layer knows nothing of.
FOREIGN_MODULES_BARRED: Final[dict[str, frozenset[str]]] = {
    "formats": FILE_MODULES | SOCKET_MODULES | TIME_MODULES | {"asyncio", "io", "os", "subprocess", "threading"},
    "protocol": FILE_MODULES | SOCKET_MODULES | TIME_MODULES | {"asyncio", "io", "os", "subprocess", "threading"},
    "storage": TIME_MODULES,
    "engine": SOCKET_MODULES | TIME_MODULES | {"http", "json", "urllib"},
    "streams": SOCKET_MODULES | TIME_MODULES | {"http", "json", "urllib"},
}

# What the layers that take their time from clock.py may still import: it measures, and decides nothing.
STOPWATCH: Final = frozenset({"time.perf_counter", "time.perf_counter_ns"})
STOPWATCH_LAYERS: Final = frozenset({"storage", "engine", "streams"})

# Modules, or folders of them, that touch files themselves; everything else asks storage/fs.py.
TOUCHES_FILES: Final[dict[str, str]] = {
    "topics.storage.fs": "the seam itself",
    "topics.testing": "contract fakes that wrap real files",
    "topics.server.process_figures": "numbers of the kernel about the process, no file of the log",
    "topics.console.files": "the files of the web page, which are part of the package",
    "topics.cli": "files that a user names, pipes, the shell's completion",
    "topics.bench": "measures the disk without us in between",
    "topics.demos": "work in temporary folders",
}

# `os.close`, `os.read` and `os.write` are absent: pipes need them, and a file needs `os.open` first.
FILE_CALLS: Final = frozenset({"open", "io.open", "io.open_code", "io.FileIO"}) | {
    f"os.{name}"
    for name in (
        *("open", "fdopen", "pread", "preadv", "pwrite", "pwritev", "writev", "sendfile", "copy_file_range"),
        *("fsync", "fdatasync", "sync", "truncate", "ftruncate", "posix_fallocate", "posix_fadvise", "lockf"),
        *("rename", "renames", "replace", "link", "symlink", "unlink", "remove"),
        *("mkdir", "makedirs", "rmdir", "removedirs", "listdir", "scandir", "walk", "fwalk"),
        *("stat", "lstat", "fstat", "statvfs", "access", "chmod", "utime"),
        *("path.exists", "path.lexists", "path.isfile", "path.isdir", "path.getsize", "path.getmtime"),
    )
}

# Where the program starts. What is not reachable from here is dead. A module that is started by its name
# (`python -m`) or imported by it is found through that string and needs no entry.
ENTRY_POINTS: Final[dict[str, str]] = {
    "pyspark_topics": "Spark imports it by its name",
    "pyspark_topics_streams": "Spark imports it by its name",
    "topics": "what users import",
    "topics.cli.entry": "the command `topics`",
    "topics.demos.embedded": "`make demo-embedded`",
    "topics.demos.pipeline": "a streaming query of `topics demo --spark`",
    "topics.spark.schemas": "for readers on Spark",
    "topics.spark.reading.trigger_plan": "for readers on Spark",
}

NAMES_WITHOUT_A_SUBJECT: Final = frozenset({"common", "helper", "helpers", "misc", "util", "utils"})

# Folders of tests that follow no module of ours.
TEST_FOLDERS_FREE: Final = frozenset(
    {"browser", "cli", "crash", "docs", "golden", "process", "server/contract", "spark/cluster"}
)

# Test files that are about several modules at once, and why.
TESTS_CROSS_CUTTING: Final[dict[str, str]] = {
    "client/test_deadlines.py": "how long both clients wait and how much they read, whatever a server sends",
    "client/test_faults.py": "both clients against a server and a network that fail",
    "client/test_forks.py": "processes that fork with a client that is connected",
    "client/test_page.py": "docs/client.md: its programs, and its table against the OpenAPI document",
    "client/test_parity.py": "both clients and both embedded logs, held to the same behaviour",
    "client/test_typing.py": "the public types, as mypy and pyright see them",
    "client/test_websockets.py": "the WebSockets of both clients",
    "client/test_worker_kills.py": "workers and servers that are killed",
    "embedded/test_forks.py": "processes that fork, or end, with a log that is open",
    "embedded/test_parity.py": "docs/embedded.md: its programs, and its table against routes and methods",
    "engine/test_state_machine.py": "the engine as a whole against a model of one topic",
    "engine/routers/test_router_crashes.py": "routers as a whole, with crashes in between",
    "engine/routers/test_router_state_machine.py": "routers as a whole against a model",
    "formats/test_fixture_segments.py": "segments that another program wrote",
    "formats/test_golden.py": "bytes of every format, pinned",
    "server/api/test_rendered_answers.py": "answers that are rendered as text, held to their structs",
    "server/openapi/test_generators.py": "code generators take the OpenAPI document",
    "server/test_tls.py": "TLS under the listener and both protocols",
    "server/test_against_h11.py": "our reading of HTTP/1.1 against that of another parser",
    "server/test_cold_tier.py": "a cold tier that is slow, hangs or fails, under all of the server",
    "server/test_history.py": "many clients at once, judged by the rules of the log",
    "server/test_hostile_input.py": "requests that mean harm, through all of the server",
    "server/test_secrets.py": "whatever the server says, looked through for keys",
    "server/streams/test_hostile_frames.py": "frames that mean harm, through all of the server",
    "server/streams/test_large_requests.py": "who may send how much, and what the server holds of it",
    "server/streams/test_probes.py": "what large requests of one client cost the others",
    "server/streams/test_rights.py": "every command, for users with and without permissions",
    "test_build.py": "what is compiled, and what a build says where it cannot",
    "test_make_env.py": "what `make` installs",
    "test_installation.py": "the wheel in an environment of its own, and the hints that name extras",
    "test_retries.py": "which failed tests CI runs a second time",
    "test_invariants.py": "every invariant of the contract has a test",
    "spark/jobs/test_live_directory.py": "every job at a running server, and at the directories that it has open",
    "spark/test_exactly_once.py": "a query from topic to topic whose processes are killed",
    "spark/test_secrets.py": "whatever Spark writes about a read, looked through for keys",
    "spark/test_spark_facts.py": "what Spark does with any source",
    "spark/test_stream_source.py": "the streaming half of the source, without Spark",
    "spark/test_tutorial.py": "docs/spark-tutorial.md: its commands, from curl to SQL",
    "streams/test_fixture_iggy.py": "a directory that another server wrote, through all of the engine",
    "test_tidy.py": "the rules of the house",
}

# Spelled so that this file does not find itself.
LEFTOVER: Final = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|NotImplemented" r"Error)\b")


# --- modules and their imports ------------------------------------------------------------------------------


class Module(NamedTuple):
    name: str
    path: str
    # Of the whole syntax tree, in the order of `ast.walk`.
    nodes: list[ast.AST]

    @property
    def layer(self) -> str:
        return layer_of(self.name)


class Use(NamedTuple):
    """A dotted name that a module imports or calls, and the line."""

    name: str
    line: int


def parse_module(name: str, source: str, path: str = "") -> Module:
    return Module(name, path or name.replace(".", "/") + ".py", list(ast.walk(ast.parse(source))))


@cache
def load_modules(root: Path) -> dict[str, Module]:
    """All modules below `root`, by dotted name; a package goes by the name of its folder."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = parse_module(name, path.read_text("utf-8"), str(path.relative_to(REPOSITORY)))
    return modules


def layer_of(name: str) -> str:
    below = name.split(".")[1] if "." in name else ""
    return LAYER_BY_NAME.get(below, below)


def is_ours(name: str) -> bool:
    return name == "topics" or name.startswith("topics.")


def imported_names(module: Module) -> Iterator[Use]:
    """Every import, also inside functions and under TYPE_CHECKING: a type is a dependency, too.

    `from a import b` gives `a.b`, whether `b` is a module or not.
    """
    is_package = module.path.endswith("__init__.py")
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (Use(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parents = module.name.split(".")
                package = parents[: len(parents) - node.level + is_package]
                origin = ".".join([*package, origin] if origin else package)
            yield from (Use(f"{origin}.{alias.name}", node.lineno) for alias in node.names)


def imported_by_string(module: Module, modules: Mapping[str, Module]) -> Iterator[Use]:
    """Modules of ours that are named by a string: to be started with `python -m`, or imported by name."""
    if module.name in STARTS_THE_COMMAND_LINE:
        return
    for node in module.nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value in modules
            and "." in node.value
        ):
            yield Use(node.value, node.lineno)


def imported_layer(name: str) -> str:
    """The layer an imported name belongs to; `from topics import open` is the root, not a layer `open`."""
    layer = layer_of(name)
    return layer if layer == FAKES or layer in RANK_BY_LAYER else "topics"


# --- rules: modules in, findings out ------------------------------------------------------------------------

RANK_BY_LAYER: Final[dict[str, int]] = {layer: rank for rank, row in enumerate(ROWS) for layer in row}


def may_import(layer: str, other: str) -> bool:
    if layer == other:
        return True
    if other == FAKES:
        return False
    if layer == FAKES:
        return True
    return RANK_BY_LAYER[other] > RANK_BY_LAYER[layer] and other not in KNOWS_NOTHING_OF.get(layer, frozenset())


def find_forbidden_imports(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        layer = module.layer
        if layer != FAKES and layer not in RANK_BY_LAYER:
            yield f"{module.path}: no row for `{layer}`; give it one in LAYER_BY_NAME or ROWS"
            continue
        for name, line in [*imported_names(module), *imported_by_string(module, modules)]:
            if is_ours(name):
                other = imported_layer(name)
                if not may_import(layer, other):
                    yield f"{module.path}:{line}: {layer} may not import {other} ({name})"
            elif name in STOPWATCH and layer in STOPWATCH_LAYERS:
                continue
            elif name.split(".")[0] in FOREIGN_MODULES_BARRED.get(layer, ()):
                yield f"{module.path}:{line}: {layer} knows nothing of `{name.split('.')[0]}`"


def room_of(package: str, name: str) -> str:
    """The first part of a module's name below its package; "" for the package itself."""
    return name.removeprefix(package).lstrip(".").split(".")[0]


def find_imports_of_higher_rooms(modules: Mapping[str, Module]) -> Iterator[str]:
    for package, rows in ROOMS.items():
        rank_by_room = {room: rank for rank, row in enumerate(rows) for room in row}
        for module in modules.values():
            room = room_of(package, module.name)
            if not module.name.startswith(package + ".") or not room:
                continue
            if room not in rank_by_room:
                yield f"{module.path}: no row for the room `{room}` of {package}; give it one in ROOMS"
                continue
            for name, line in [*imported_names(module), *imported_by_string(module, modules)]:
                if not name.startswith(package + "."):
                    continue
                other = room_of(package, name)
                if other in rank_by_room and other != room and rank_by_room[other] <= rank_by_room[room]:
                    yield f"{module.path}:{line}: {package}: `{room}` may not import `{other}` ({name})"


def fields_by_class(module: Module) -> dict[str, set[str]]:
    """Names of the fields of every class in the module: assigned through `self`, in slots, or declared in the class."""
    fields: dict[str, set[str]] = {}
    for node in module.nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        found = fields.setdefault(node.name, set())
        for inner in ast.walk(node):
            if (
                isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and last_name(inner.value) == "self"
            ):
                found.add(inner.attr)
        found.update(
            statement.target.id
            for statement in node.body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        )
    return fields


def last_name(node: ast.AST) -> str:
    """`topic` for `topic`, `self._topic` and `captured.topic`; "" for everything that is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr.lstrip("_")
    return node.id.lstrip("_") if isinstance(node, ast.Name) else ""


def find_foreign_assignments(modules: Mapping[str, Module]) -> Iterator[str]:
    """Assignments to a field of an object whose class is in another module of the same package."""
    for package in OWNED_STATE:
        inside = [module for module in modules.values() if module.name.startswith(package + ".")]
        fields = {module.name: fields_by_class(module) for module in inside}
        owners: dict[str, set[str]] = {}
        for name, classes in fields.items():
            for field in set().union(*classes.values()) if classes else ():
                owners.setdefault(field, set()).add(name)
        module_of_class = {kind: name for name, classes in fields.items() for kind in classes}
        for module in inside:
            for node in module.nodes:
                if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
                    continue
                variable = last_name(node.value)
                if variable in VALUES_OF_LOWER_LAYERS or (variable == "self" and isinstance(node.value, ast.Name)):
                    continue
                kind = CLASS_BY_VARIABLE.get(variable)
                owner = {module_of_class[kind]} if kind in module_of_class else owners.get(node.attr, set())
                if owner and module.name not in owner:
                    yield f"{module.path}:{node.lineno}: `{node.attr}` is assigned outside of its owner, {min(owner)}"


def find_called_callbacks(modules: Mapping[str, Module]) -> Iterator[str]:
    """Functions of the engine that call a caller's callback themselves instead of handing it to `Completions`."""
    for module in modules.values():
        if not module.name.startswith("topics.engine."):
            continue
        for function in module.nodes:
            if not isinstance(function, ast.FunctionDef) or function.name in WRAPS_A_CALLBACK:
                continue
            arguments = [*function.args.args, *function.args.kwonlyargs]
            names = {
                argument.arg
                for argument in arguments
                if argument.annotation is not None
                and any(
                    last_name(node) in CALLER_CALLBACKS
                    for node in ast.walk(argument.annotation)
                    if isinstance(node, ast.expr)
                )
            }
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                    yield f"{module.path}:{node.lineno}: {function.name} calls `{node.func.id}`; use Core.answer"


def touches_files(name: str) -> bool:
    return any(name == owner or name.startswith(owner + ".") for owner in TOUCHES_FILES)


def used_names(module: Module) -> Iterator[Use]:
    """Imported names, and every dotted expression with its first part replaced by what it was imported as."""
    meaning = {"open": "open"}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                meaning[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                meaning[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for statement in ast.iter_child_nodes(module.nodes[0]):
        if isinstance(statement, ast.FunctionDef):
            meaning.pop(statement.name, None)  # An `open` of our own, such as the public one, is not the builtin.
    for node in module.nodes:
        parts: list[str] = []
        base: ast.AST = node
        while isinstance(base, ast.Attribute):
            parts.append(base.attr)
            base = base.value
        if isinstance(base, ast.Name) and base.id in meaning:
            yield Use(".".join([meaning[base.id], *reversed(parts)]), base.lineno)
    yield from imported_names(module)


def find_file_access(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        if touches_files(module.name):
            continue
        for name, line in sorted(set(used_names(module)), key=lambda use: (use.line, use.name)):
            if name in FILE_CALLS or name.split(".")[0] in FILE_MODULES:
                yield f"{module.path}:{line}: `{name}` outside storage/fs.py"


def referred_modules(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    """Modules that this one imports, or names in a string of its own."""
    strings = (node.value for node in module.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    for name in [*(use.name for use in imported_names(module)), *strings]:
        for candidate in (name, name.rpartition(".")[0]):
            if candidate in modules and candidate != module.name:
                yield candidate
                break


def find_dead_modules(modules: Mapping[str, Module], *, users: Iterable[Module] = ()) -> Iterator[str]:
    """Modules that no entry point reaches. The fakes are reached from `users`, the tests, as well."""
    pending = [name for name in modules if name in ENTRY_POINTS or name.endswith(".__main__")]
    for user in users:
        pending += [name for name in referred_modules(user, modules) if layer_of(name) == FAKES]
    alive: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in alive:
            alive.add(name)
            pending += referred_modules(modules[name], modules)
            if (package := name.rpartition(".")[0]) in modules:
                pending.append(package)
    for name in sorted(modules.keys() - alive):
        yield f"{modules[name].path}: nothing imports it; delete it, or name it in ENTRY_POINTS"


def find_asserts_of_properties(modules: Mapping[str, Module]) -> Iterator[str]:
    """Asserts that only read a property. It is read for the error that it raises, and is not read where Python leaves
    out asserts."""
    properties = {
        node.name
        for module in modules.values()
        for node in module.nodes
        if isinstance(node, ast.FunctionDef) and "property" in map(last_name, node.decorator_list)
    }
    for module in modules.values():
        for node in module.nodes:
            if isinstance(node, ast.Assert) and isinstance(node.test, ast.Attribute) and node.test.attr in properties:
                yield f"{module.path}:{node.lineno}: an assert of the property `{node.test.attr}`; call a function"


def find_kernel_asserts(sources: Mapping[str, str]) -> Iterator[str]:
    for path, source in sources.items():
        for number, line in enumerate(source.splitlines(), 1):
            if re.match(r"\s*assert\b", line):
                yield f"{path}:{number}: an assert may be left out, and what follows then touches foreign memory; raise"


def find_leftovers(sources: Mapping[str, str]) -> Iterator[str]:
    for path, source in sources.items():
        for number, line in enumerate(source.splitlines(), 1):
            if match := LEFTOVER.search(line):
                yield f"{path}:{number}: {match[0]}: finish it, or open an issue instead"


def find_names_without_a_subject(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        words = {part.removeprefix("test_").strip("_") for part in Path(path).with_suffix("").parts}
        if vague := words & NAMES_WITHOUT_A_SUBJECT:
            yield f"{path}: `{min(vague)}` names no subject; say what it is about"


def find_stray_tests(tests: Iterable[str], modules: Iterable[str]) -> Iterator[str]:
    """Test files that mirror no module. `storage/test_wal_rotation.py` is as good as `storage/test_wal.py`."""
    modules = list(modules)
    for test in tests:
        path = Path(test)
        if test in TESTS_CROSS_CUTTING or any(parent.as_posix() in TEST_FOLDERS_FREE for parent in path.parents):
            continue
        folder = ".".join(["topics", *path.parent.parts, ""])
        siblings = {name.removeprefix(folder).split(".")[0] for name in modules if name.startswith(folder)}
        subject = path.stem.removeprefix("test_")
        if not any(subject == sibling or subject.startswith(sibling + "_") for sibling in siblings):
            yield f"tests/{test}: mirrors no module of {folder[:-1]}; rename it or list it in TESTS_CROSS_CUTTING"


def expect_none(findings: Iterable[str]) -> None:
    if lines := list(findings):
        pytest.fail("\n".join(lines), pytrace=False)


# --- the rules hold for us ----------------------------------------------------------------------------------


def test_imports_only_point_downwards() -> None:
    expect_none(find_forbidden_imports(load_modules(SOURCE)))


def test_imports_inside_a_package_only_point_downwards() -> None:
    expect_none(find_imports_of_higher_rooms(load_modules(SOURCE)))


def test_a_field_is_assigned_only_by_the_module_that_owns_it() -> None:
    expect_none(find_foreign_assignments(load_modules(SOURCE)))


def test_no_room_of_the_engine_calls_a_callback_of_its_caller() -> None:
    expect_none(find_called_callbacks(load_modules(SOURCE)))


def test_only_the_file_system_seam_touches_files() -> None:
    expect_none(find_file_access(load_modules(SOURCE)))


def test_no_module_is_dead() -> None:
    expect_none(find_dead_modules(load_modules(SOURCE), users=load_modules(TESTS).values()))


def test_no_assert_reads_a_property_for_its_error() -> None:
    expect_none(find_asserts_of_properties(load_modules(SOURCE)))


def test_kernels_raise_and_have_no_asserts() -> None:
    kernels = list(SOURCE.rglob("*.pyx"))
    assert kernels
    expect_none(find_kernel_asserts({str(path.relative_to(REPOSITORY)): path.read_text("utf-8") for path in kernels}))


def test_nothing_is_left_to_be_done() -> None:
    paths = [*SOURCE.rglob("*.py"), *TESTS.rglob("*.py")]
    expect_none(find_leftovers({str(path.relative_to(REPOSITORY)): path.read_text("utf-8") for path in paths}))


def test_every_module_name_has_a_subject() -> None:
    paths = [*SOURCE.rglob("*.py"), *TESTS.rglob("*.py")]
    expect_none(find_names_without_a_subject(str(path.relative_to(REPOSITORY)) for path in paths))


def test_unit_tests_mirror_the_modules() -> None:
    tests = [str(path.relative_to(TESTS)) for path in sorted(TESTS.rglob("test_*.py"))]
    expect_none(find_stray_tests(tests, load_modules(SOURCE)))


# --- the rules bite -----------------------------------------------------------------------------------------


def made_up(**source_by_name: str) -> dict[str, Module]:
    """Modules below `topics`; `storage__wal` is `topics.storage.wal`, a bare `topics` the root."""
    names = {key: "topics" if key == "topics" else "topics." + key.replace("__", ".") for key in source_by_name}
    return {names[key]: parse_module(names[key], source) for key, source in source_by_name.items()}


def test_an_upward_import_is_found_with_its_line() -> None:
    modules = made_up(formats__frame="import struct\nfrom topics.storage.wal import Wal\n")
    assert list(find_forbidden_imports(modules)) == [
        "topics/formats/frame.py:2: formats may not import storage (topics.storage.wal.Wal)"
    ]


def test_an_upward_import_is_found_however_it_is_written() -> None:
    ways = (
        "import topics.engine.topic",
        "import topics.engine.topic as rules",
        "from topics import engine",
        "from topics.engine import topic",
        "from ..engine import topic",
        "from .. import engine",
        "def late():\n    from topics.engine import topic",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from topics.engine import topic",
    )
    for way in ways:
        assert len(list(find_forbidden_imports(made_up(storage__wal=way)))) == 1, way


def test_a_relative_import_in_a_package_starts_at_the_package() -> None:
    package = parse_module("topics.storage", "from . import wal\nfrom ..engine import topic", "storage/__init__.py")
    assert [use.name for use in imported_names(package)] == ["topics.storage.wal", "topics.engine.topic"]


def test_an_import_by_string_is_an_import() -> None:
    modules = made_up(storage__view="WORKER = 'topics.engine.viewer'", engine__viewer="")
    assert list(find_forbidden_imports(modules)) == [
        "topics/storage/view.py:1: storage may not import engine (topics.engine.viewer)"
    ]


def test_an_import_of_a_higher_room_is_found_also_by_string() -> None:
    modules = made_up(
        engine__topic__tail="from topics.engine.writing.write_path import WritePath\nNAME = 'topics.engine.core'",
        engine__core="from topics.engine.topic.tail import Tail",
        engine__writing__write_path="from topics.engine.writing import other\nimport topics.engine.groups",
        engine__groups="",
        engine__novelty="",
    )
    assert [finding.partition(" (")[0] for finding in find_imports_of_higher_rooms(modules)] == [
        "topics/engine/topic/tail.py:1: topics.engine: `topic` may not import `writing`",
        "topics/engine/topic/tail.py:2: topics.engine: `topic` may not import `core`",
        "topics/engine/writing/write_path.py:2: topics.engine: `writing` may not import `groups`",
        "topics/engine/novelty.py: no row for the room `novelty` of topics.engine; give it one in ROOMS",
    ]


def test_a_foreign_assignment_is_found_however_it_is_written() -> None:
    owner = "class LiveRecords:\n    def __init__(self):\n        self.head_seq = 0\n        self.lost = []"
    ways = (
        "def f(live):\n    live.head_seq = 1",
        "def f(topic):\n    topic.live.head_seq += 1",
        "class A:\n    def f(self):\n        self._topic.live.head_seq, rest = 1, 2",
        "def f(records):\n    records.head_seq = 1",
        "def f(live):\n    for live.head_seq in range(3): pass",
        "def f(live):\n    del live.lost",
        # A class here has a field of the same name; the variable tells that another one is meant.
        "class Model:\n    def __init__(self):\n        self.head_seq = 0\ndef f(live):\n    live.head_seq = 1",
    )
    for way in ways:
        modules = made_up(engine__topic__live_records=owner, engine__queues__queues=way)
        assert len(list(find_foreign_assignments(modules))) == 1, way
    for way in ("def f(live):\n    live.raise_head(1)", "class B:\n    def f(self):\n        self.head_seq = 1"):
        assert not list(find_foreign_assignments(made_up(engine__topic__live_records=owner, engine__core=way))), way


def test_a_called_callback_is_found() -> None:
    modules = made_up(
        engine__groups="def put(done: Done[bool]):\n    done(True)\ndef ok(done: Done[bool]):\n    answer(done, 1)",
        engine__writing__staging="def _answer_repeat(done: Done[int], result):\n    done(result)",
    )
    assert list(find_called_callbacks(modules)) == ["topics/engine/groups.py:2: put calls `done`; use Core.answer"]


def test_siblings_never_meet() -> None:
    modules = made_up(engine__topic="import topics.streams.group", streams__group="from topics.engine import topic")
    assert len(list(find_forbidden_imports(modules))) == 2


def test_nothing_imports_the_fakes_and_they_import_anything() -> None:
    modules = made_up(
        cli__main="from topics.testing import fake_disk",
        testing__fake_disk="import topics.storage.fs\nimport topics.server.app\nimport topics.testing.clock",
    )
    assert list(find_forbidden_imports(modules)) == [
        "topics/cli/main.py:1: cli may not import testing (topics.testing.fake_disk)"
    ]


def test_what_a_layer_knows_nothing_of_is_refused_though_it_lies_below() -> None:
    modules = made_up(
        cli__dump="from topics.formats import segment",
        client__sync="from topics.embedded import Log",
        formats__frame="import os.path\nfrom topics.clock import Clock\nfrom topics.errors import Torn",
        engine__topic="from time import perf_counter_ns, time_ns",
    )
    assert list(find_forbidden_imports(modules)) == [
        "topics/cli/dump.py:1: cli may not import formats (topics.formats.segment)",
        "topics/client/sync.py:1: client may not import embedded (topics.embedded.Log)",
        "topics/formats/frame.py:1: formats knows nothing of `os`",
        "topics/formats/frame.py:2: formats may not import clock (topics.clock.Clock)",
        "topics/engine/topic.py:1: engine knows nothing of `time`",
    ]


def test_the_root_is_for_programs_not_for_layers() -> None:
    modules = made_up(demos__a="import topics", bench__append="from topics import open", engine__topic="import topics")
    assert list(find_forbidden_imports(modules)) == ["topics/engine/topic.py:1: engine may not import topics (topics)"]


def test_a_module_without_a_row_is_refused() -> None:
    assert list(find_forbidden_imports(made_up(novelty="import sys"))) == [
        "topics/novelty.py: no row for `novelty`; give it one in LAYER_BY_NAME or ROWS"
    ]


def test_every_layer_of_the_tables_has_a_row() -> None:
    named = {*LAYER_BY_NAME.values(), *KNOWS_NOTHING_OF, *FOREIGN_MODULES_BARRED}
    assert named | frozenset().union(*KNOWS_NOTHING_OF.values()) <= RANK_BY_LAYER.keys()


def test_file_access_is_found_under_any_name() -> None:
    ways = (
        "with open('x') as file: pass",
        "import os\nos.fsync(3)",
        "import os as system\nsystem.rename('a', 'b')",
        "from os import replace as swap",
        "import os.path\nos.path.exists('x')",
        "from mmap import mmap",
        "sync = __builtins__; import os; call = os.fdatasync",
    )
    for way in ways:
        assert list(find_file_access(made_up(storage__wal=way))), way
        assert not list(find_file_access(made_up(storage__fs=way))), way


def test_an_open_of_our_own_and_calls_on_pipes_are_no_file_access() -> None:
    modules = made_up(
        topics="def open(path): ...\nlog = open('x')",
        storage__worker="import os\nos.read(0, 8)\nfs.open('x', 'read')\npath = os.path.join('a', 'b')",
    )
    assert not list(find_file_access(modules))


def test_a_dead_module_is_found_even_when_another_dead_one_imports_it() -> None:
    modules = made_up(
        topics="from topics.embedded import Log",
        embedded="WORKER = 'topics.storage.worker'",
        storage__worker="",
        storage__old="from topics.storage import older",
        storage__older="",
        testing__fake_disk="",
        testing__forgotten="",
    )
    users = [
        parse_module("storage.test_wal", "from topics.testing.fake_disk import FakeDisk\nimport topics.storage.old")
    ]
    assert [finding.split(":")[0] for finding in find_dead_modules(modules, users=users)] == [
        "topics/storage/old.py",
        "topics/storage/older.py",
        "topics/testing/forgotten.py",
    ]


def test_an_assert_of_a_property_is_found_with_its_line() -> None:
    modules = made_up(
        server__session="class Session:\n    @property\n    def user(self): ...\n    def name(self): ...",
        server__commands="assert session.user\nassert session.name\nassert session.user is None",
    )
    assert list(find_asserts_of_properties(modules)) == [
        "topics/server/commands.py:1: an assert of the property `user`; call a function"
    ]


def test_an_assert_in_a_kernel_is_found_with_its_line() -> None:
    found = find_kernel_asserts({"a.pyx": "# assert\ncdef f():\n    assert x\n    asserted = 1"})
    assert [finding.partition(" ")[0] for finding in found] == ["a.pyx:3:"]


def test_a_leftover_is_found_with_its_line() -> None:
    word = "FIX" + "ME"
    assert list(find_leftovers({"a.py": f"x = 1\n# {word} later\nXXXL = 2"})) == [
        f"a.py:2: {word}: finish it, or open an issue instead"
    ]


def test_a_name_without_a_subject_is_found() -> None:
    paths = ["src/topics/utils.py", "src/topics/common/wal.py", "tests/test_helpers.py", "src/topics/storage/wal.py"]
    assert len(list(find_names_without_a_subject(paths))) == 3


def test_a_stray_unit_test_is_found() -> None:
    tests = [
        "storage/test_wal.py",
        "storage/test_wal_rotation.py",
        "storage/test_walrus.py",
        "test_clock.py",
        "crash/test_any.py",
        "server/contract/test_any.py",
    ]
    assert list(find_stray_tests(tests, ["topics", "topics.clock", "topics.storage", "topics.storage.wal"])) == [
        "tests/storage/test_walrus.py: mirrors no module of topics.storage; rename it or list it in TESTS_CROSS_CUTTING"
    ]
