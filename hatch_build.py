"""Compiles the hot modules of `topics` with mypyc, and its kernels with Cython: part of the build of every wheel.

Modules and kernels are listed once, in `pyproject.toml`. The sources of modules are plain Python, each kernel has a
plain module beside it, and the package runs without the compiled form. A wheel has the sources of all modules, and
beside the source of a compiled module its extension module, which Python prefers. The source tree gets no extension
modules: one beside a source would win over each later edit.

`TOPICS_COMPILE` says what a build does: 1 compiles or fails, 0 does not compile. Without it the build compiles where it
finds a C compiler and the headers of Python, and makes a plain wheel otherwise.

`python hatch_build.py FOLDER` makes the compiled package in FOLDER, for `PYTHONPATH=FOLDER`, and installs nothing.

A build keeps C sources and objects in `build/mypyc`: the next build compiles only the C files that have changed.
"""

import argparse
import contextlib
import hashlib
import io
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # Without hatchling the module is a command only.
    BuildHookInterface = object

ROOT: Final = Path(__file__).resolve().parent
# Of the shared library with the code of all modules. Each module has a small extension module of its own beside it.
GROUP: Final = "topics"
# Measured: with -O2 the C compiler takes 1.7 times as long, and an append or a read is no faster.
C_FLAGS: Final = ("-O1", "-g0", "-fPIC", "-fno-semantic-interposition", "-fvisibility=hidden")
# Kernels are loops over numbers: with -O3 the compiler makes vectors of them.
KERNEL_C_FLAGS: Final = ("-O3", "-g0", "-fPIC", "-fvisibility=hidden")


class CannotCompile(Exception):
    """Says in one sentence why this build has no compiled modules."""


class CompiledModules(BuildHookInterface):  # type: ignore[misc,valid-type]
    """The build hook: adds the extension modules to a wheel."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        # The types of the packages that we import decide which code mypyc makes.
        return [*self.config["requires"], *self.metadata.core.dependencies] if _reason_for_plain() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        wish = os.environ.get("TOPICS_COMPILE", "")
        reason = _reason_for_plain()
        built: dict[str, Path] = {}
        if reason is None:
            try:
                built = compile_modules(Path(self.root), self.config["modules"], self.config["kernels"])
            except CannotCompile as error:
                reason = str(error)
        if reason is not None:
            if wish == "1":
                raise SystemExit(f"topics: TOPICS_COMPILE=1, but the modules cannot be compiled: {reason}")
            self.app.display_warning(f"topics: this is a wheel in plain Python, about half as fast: {reason}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(path): name for name, path in built.items()})


def _reason_for_plain() -> str | None:
    """Why a build would not even try to compile; None: it tries."""
    wish = os.environ.get("TOPICS_COMPILE", "")
    if wish not in {"", "0", "1"}:
        raise SystemExit(f"topics: TOPICS_COMPILE is 0, 1 or not set, not {wish!r}")
    if wish == "0":
        return "TOPICS_COMPILE=0"
    if sys.implementation.name != "cpython" or os.name != "posix":
        return "mypyc is used with CPython on Linux and macOS only"
    if packages := missing_packages():
        return f"a C compiler or the headers of Python are missing; on Debian: apt-get install {' '.join(packages)}"
    return None


def missing_packages() -> list[str]:
    """The packages of Debian that bring what is missing for a C compilation."""
    packages = []
    if shutil.which(shlex.split(_config("CC"))[0]) is None:
        packages += ["gcc", "libc6-dev"]
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        packages.append("python{}.{}-dev".format(*sys.version_info))
    return packages


def _config(name: str) -> str:
    return str(os.environ.get(name) or sysconfig.get_config_var(name) or "")


def sources_of(root: Path, modules: list[str], suffix: str = ".py") -> list[str]:
    """The paths of modules below `src`, in the order of their names."""
    paths = sorted("src/" + module.replace(".", "/") + suffix for module in modules)
    for path in paths:
        if not (root / path).is_file():
            raise SystemExit(f"topics: pyproject.toml lists a module that is not there: {path}")
    return paths


def compile_modules(root: Path, modules: list[str], kernels: list[str]) -> dict[str, Path]:
    """The path of each extension module, by its name in a wheel."""
    started = time.monotonic()
    work = root / "build" / "mypyc"
    work.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(root)
    try:
        extensions = _made_c(sources_of(root, modules), work)
        made_kernels = _made_kernels(sources_of(root, kernels, ".pyx"), work)
        in_c = time.monotonic()
        folders = {folder for extension in extensions for folder in extension.include_dirs}
        built = _Compiler(work, folders).built(extensions + made_kernels)
    finally:
        os.chdir(before)
    print(
        f"topics: compiled {len(modules)} modules and {len(made_kernels)} kernels in {time.monotonic() - started:.0f} "
        f"s, {in_c - started:.0f} s of them for Python to C",
        file=sys.stderr,
    )
    return built


def _made_c(sources: list[str], work: Path) -> list[Any]:
    """What mypyc makes of the sources: descriptions of extension modules, their C files below `work`."""
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        raise CannotCompile(f"mypyc is missing: {error}") from error

    # Types are checked as far as mypyc needs them. `make lint` is the strict check.
    options = ["--config-file=", f"--cache-dir={work / 'mypy_cache'}", "--follow-imports=silent"]
    os.environ["MYPYPATH"] = "src"
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            extensions: list[Any] = mypycify(
                [*options, "--explicit-package-bases", *sources],
                only_compile_paths=sources,
                multi_file=True,
                target_dir=str(work / "c"),
                group_name=GROUP,
            )
    except SystemExit as error:
        raise CannotCompile(f"mypyc refuses a module:\n{said.getvalue()}{error}") from error
    _mend_slices(work / "c" / "bytes_ops.c")
    if said.getvalue():
        # A warning of mypyc is about code that behaves differently in the two forms.
        raise CannotCompile(f"mypyc warns:\n{said.getvalue()}")
    return extensions


def _made_kernels(sources: list[str], work: Path) -> list[Any]:
    """What Cython makes of the kernels: descriptions of extension modules, their C files below `work`."""
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError
        from setuptools import Extension
    except ImportError as error:
        if os.environ.get("TOPICS_COMPILE") == "1":
            raise CannotCompile(f"Cython is missing: {error}") from error
        print("topics: Cython is missing, so the kernels stay plain Python: pip install cython", file=sys.stderr)
        return []
    names = [source.removeprefix("src/").removesuffix(".pyx").replace("/", ".") for source in sources]
    extensions = [Extension(name, [source]) for name, source in zip(names, sources, strict=True)]
    try:
        made: list[Any] = cythonize(extensions, build_dir=str(work / "kernels"), quiet=True)
    except CompileError as error:
        raise CannotCompile(f"Cython refuses a kernel: {error}") from error
    return made


def _mend_slices(runtime: Path) -> None:
    """A slice of bytes that ends before it begins is empty. The runtime library of mypyc 2.4 raises SystemError."""
    text = runtime.read_text()
    wrong, right = "slice_len = endn - startn;", "slice_len = endn > startn ? endn - startn : 0;"
    if text.count(wrong) != 1:
        raise CannotCompile("this version of mypyc is not known: see _mend_slices")
    runtime.write_text(text.replace(wrong, right))


class _Compiler:
    """The C compiler, on all cores. An object whose C file and headers have not changed is used again."""

    def __init__(self, work: Path, include_dirs: set[str]) -> None:
        from mypy.version import __version__
        from mypyc.build import get_cflags

        self._work = work
        self._objects = work / "objects"
        self._objects.mkdir(exist_ok=True)
        warnings = [flag for flag in get_cflags(compiler_type="unix", multi_file=True) if flag.startswith("-W")]
        self._includes = [f"-I{folder}" for folder in (sysconfig.get_path("include"), *sorted(include_dirs))]
        self._compile = [*shlex.split(_config("CC")), *warnings, *C_FLAGS]
        self._compile_kernel = [*shlex.split(_config("CC")), *KERNEL_C_FLAGS]
        self._link = [*shlex.split(_config("LDSHARED")), *shlex.split(os.environ.get("LDFLAGS", ""))]
        # The included files of Python and mypyc: their versions say what is in them.
        self._versions = [sys.version, __version__]
        headers = hashlib.sha256(" ".join([*self._versions, *self._compile]).encode())
        for header in sorted((work / "c").rglob("*.h")):
            headers.update(header.read_bytes())
        self._headers = headers
        # What each generated file includes, parsed once: that saves a fifth of the time.
        self._prefix = work / f"prefix-{headers.hexdigest()[:16]}.h"

    def built(self, extensions: list[Any]) -> dict[str, Path]:
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        targets = {extension.name.replace(".", "/") + suffix: extension for extension in extensions}
        files = {Path(source) for extension in extensions for source in extension.sources}
        self._make_prefix()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            # The largest first: the last one to end should be a small one.
            ordered = sorted(files, key=lambda file: -file.stat().st_size)
            objects = dict(zip(ordered, pool.map(self._object, ordered), strict=True))
            linked = [
                pool.submit(self._library, name, [objects[Path(source)] for source in extension.sources])
                for name, extension in targets.items()
            ]
            libraries = [work.result() for work in linked]
        for old in self._objects.iterdir():
            if old not in objects.values():
                old.unlink()
        return dict(zip(targets, libraries, strict=True))

    def _make_prefix(self) -> None:
        compiled = self._prefix.with_suffix(".h.gch")
        if compiled.exists():
            return
        for old in self._work.glob("prefix-*"):
            old.unlink()
        self._prefix.write_text(f'#include "__native_internal_{GROUP}.h"\n')
        half = self._work / f"prefix.{os.getpid()}"
        _run([*self._compile, *self._includes, "-x", "c-header", str(self._prefix), "-o", str(half)])
        half.replace(compiled)

    def _object(self, file: Path) -> Path:
        is_kernel = (self._work / "kernels").resolve() in file.resolve().parents
        is_generated = file.name.startswith("__native")
        compiler = self._compile_kernel if is_kernel else self._compile
        # The others are the runtime library of mypyc, and for each module a shim that imports the shared library.
        key = self._headers.copy() if is_generated else hashlib.sha256(" ".join([*self._versions, *compiler]).encode())
        key.update(file.read_bytes())
        target = self._objects / f"{key.hexdigest()[:32]}.o"
        if not target.exists():
            half = target.with_suffix(f".{os.getpid()}")
            prefix = ["-include", str(self._prefix)] if is_generated else []
            _run([*compiler, *self._includes, *prefix, "-c", str(file), "-o", str(half)])
            half.replace(target)
        return target

    def _library(self, name: str, objects: list[Path]) -> Path:
        target = self._work / "lib" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        used = " ".join(file.stem for file in objects)
        note = target.with_suffix(".objects")
        if not target.exists() or not note.exists() or note.read_text() != used:
            strip = "-Wl,-s" if sys.platform == "linux" else "-Wl,-x"
            _run([*self._link, *map(str, objects), strip, "-o", str(target)])
            note.write_text(used)
        return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotCompile(f"{shlex.join(command)}\n{done.stderr}")


def declared(root: Path) -> dict[str, Any]:
    """What `pyproject.toml` says about this hook."""
    with (root / "pyproject.toml").open("rb") as file:
        hook: dict[str, Any] = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    return hook


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Make the compiled package in a folder, for PYTHONPATH. No folder: say whether that can be done."
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--packages", action="store_true", help="print the packages of Debian that are missing for it")
    asked = parser.parse_args()
    if asked.packages:
        print(*missing_packages())
        return
    try:
        reason = _reason_for_plain()
        if reason is not None:
            raise CannotCompile(reason)
        if asked.folder is not None:
            hook = declared(ROOT)
            _make_package(asked.folder, compile_modules(ROOT, hook["modules"], hook["kernels"]))
    except CannotCompile as error:
        raise SystemExit(f"topics: the modules cannot be compiled: {error}") from error


def _make_package(folder: Path, built: dict[str, Path]) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, path in built.items():
        shutil.copy2(path, folder / name)


if __name__ == "__main__":
    main()
