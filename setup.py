"""The compiled parts of topics: two kernels in Cython, and the hot modules through mypyc. See pyproject.toml, too.

The package runs without them: each kernel has a plain module beside it, and mypyc compiles ordinary Python. A compiled
module is an extension module beside its source, and Python prefers it.

- A wheel has kernels and modules. Without a C compiler it is plain Python. `TOPICS_COMPILE=1` makes that an error, and
  `TOPICS_COMPILE=0` asks for plain Python.
- An editable install has the kernels only: a compiled module would win over each later edit of its source.
"""

import gc
import os
import shlex
import shutil
import sys
import sysconfig
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

KERNELS: Final = ("topics.formats.compiled_kernel", "topics.protocol.compiled_record_text")
# At most 30, chosen by measurement: see "What is compiled" in docs/performance.md. None of them defines a Struct, which
# would lose its class keywords, such as `frozen`.
MODULES: Final = (
    "topics.clock",
    "topics.engine.core",
    "topics.engine.engine",
    "topics.engine.queues.claiming",
    "topics.engine.queues.job_pool",
    "topics.engine.queues.queue_leases",
    "topics.engine.scheduler",
    "topics.engine.topic.leases",
    "topics.engine.topic.live_records",
    "topics.engine.topic.lost_ranges",
    "topics.engine.topic.reading",
    "topics.engine.topic.tail",
    "topics.engine.topic.topic",
    "topics.engine.topic.write_state",
    "topics.engine.writing.append",
    "topics.engine.writing.deletion",
    "topics.engine.writing.write_path",
    "topics.formats.records",
    "topics.protocol.write_body",
    "topics.server.api.appending",
    "topics.server.api.records",
    "topics.server.app",
    "topics.server.http.connections",
    "topics.server.http.exchange",
    "topics.server.http.http1",
    "topics.server.http.known_heads",
    "topics.server.live.delivery",
    "topics.server.live.reading",
    "topics.server.live.sse_feed",
    "topics.storage.wal.shard",
)


def missing_packages() -> list[str]:
    """The Debian packages that bring what is missing for compiling C."""
    packages = []
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(shlex.split(compiler)[0]) is None:
        packages += ["gcc", "libc6-dev"]
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        packages.append("python{}.{}-dev".format(*sys.version_info))
    return packages


def is_compiled() -> bool:
    """What this build shall be. Ends the build if that cannot be."""
    wish = os.environ.get("TOPICS_COMPILE", "")
    if wish not in {"", "0", "1"}:
        raise SystemExit(f"topics: TOPICS_COMPILE is 0, 1 or not set, not {wish!r}")
    if wish == "0":
        return False
    if sys.implementation.name != "cpython" or os.name != "posix":
        reason = "modules are compiled for CPython on Linux and macOS only"
    elif packages := missing_packages():
        reason = f"no C compiler, or no Python headers; on Debian: apt-get install {' '.join(packages)}"
    else:
        return True
    if wish == "1":
        raise SystemExit(f"topics: TOPICS_COMPILE=1, but nothing can be compiled: {reason}")
    print(f"topics: a build of plain Python, about two thirds as fast: {reason}", file=sys.stderr)
    return False


def source_of(module: str, suffix: str = ".py") -> str:
    return "src/" + module.replace(".", "/") + suffix


def start_mypyc(pool: ProcessPoolExecutor) -> "Future[list[Any]]":
    """What mypyc makes of the modules: one shared library, and a small extension module for each of them."""
    from mypyc.build import mypycify

    sources = [source_of(module) for module in MODULES]
    # `make lint` checks the types. Here they decide which code is made. Missing imports are ignored because a build has
    # no packages of extras, such as numpy, which the stub of a kernel imports.
    options = ["--config-file=", "--cache-dir=build/mypy_cache", "--follow-imports=silent", "--explicit-package-bases"]
    options.append("--ignore-missing-imports")
    os.environ["MYPYPATH"] = "src"
    extensions: Future[list[Any]] = pool.submit(
        mypycify,
        [*options, *sources],
        only_compile_paths=sources,
        target_dir="build/mypyc",
        group_name="topics",
        # A C file for each module, so that they are compiled side by side.
        multi_file=True,
        # Measured: -O2 takes 1.7 times as long to compile, and no request is faster.
        opt_level="1",
        debug_level="0",
    )
    # Or the process would take six seconds at its end to free its syntax trees.
    pool.submit(gc.freeze)
    return extensions


def main() -> None:
    from setuptools import Extension, setup
    from setuptools.command.build_ext import build_ext

    class BuildCompiled(build_ext):  # type: ignore[misc]
        """The kernels, and in a wheel the modules, too. mypyc makes C of them while the kernels are compiled."""

        def finalize_options(self) -> None:
            self.parallel = os.cpu_count()
            self.cython_c_in_temp = True
            super().finalize_options()

        def run(self) -> None:
            if "bdist_wheel" not in self.distribution.commands:
                super().run()
                return
            with ProcessPoolExecutor(1) as pool:
                modules = start_mypyc(pool)
                super().run()
                self.distribution.ext_modules = modules.result()
            compile_files_in_parallel()
            rest = build_ext(self.distribution)
            rest.parallel = os.cpu_count()
            rest.ensure_finalized()
            rest.run()

    # Kernels are loops over numbers: with -O3 the C compiler makes vectors of them.
    kernels = [Extension(name, [source_of(name, ".pyx")], extra_compile_args=["-O3", "-g0"]) for name in KERNELS]
    setup(ext_modules=kernels if is_compiled() else [], cmdclass={"build_ext": BuildCompiled})


def compile_files_in_parallel() -> None:
    """Alone, setuptools compiles the C files of one library one after the other."""
    from pybind11.setup_helpers import ParallelCompile

    ParallelCompile().install()


if __name__ == "__main__":
    main()
