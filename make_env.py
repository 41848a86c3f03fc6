"""Sets up what a target of the Makefile needs: `python3 make_env.py PART…`.

Each part is made once, and again when its inputs change; `.venv/parts` notes from which inputs. What is missing is
listed first, with the time that it takes on two cores. Then each step shows what it is doing.

A part that only some tests need (a browser, Java, other programs) is not an error where it cannot be installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PIP = [str(PYTHON), "-m", "pip", "--disable-pip-version-check"]
BUILDER_PIP = [str(ROOT / "build" / "builder" / "bin" / "python"), *PIP[1:]]
# Without byte code: what is imported is compiled then, and most of it never is.
INSTALL = [*PIP, "install", "--no-compile", "--progress-bar", "raw"]
# Other programs of the tests, each with its Debian package: they check what `topics generate` makes, or are the other
# side of `topics import`.
TEST_PROGRAMS = {
    "chromium": "chromium",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
    "mandoc": "mandoc",
    "redis-server": "redis-server",
    "nats-server": "nats-server",
}
# A broker, and a Kafka source that runs on the Spark of pyproject.toml; the source needs no other jars.
KAFKA_JARS = """<ivy-module version="2.0">
  <info organisation="topics" module="bench"/>
  <configurations><conf name="broker"/><conf name="source"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="4.1.1" conf="broker->default"/>
    <dependency org="org.apache.spark" name="spark-sql-kafka-0-10_2.13" rev="4.2.0" conf="source->master"/>
    <dependency org="org.apache.spark" name="spark-token-provider-kafka-0-10_2.13" rev="4.0.0" conf="source->master"/>
    <dependency org="org.apache.kafka" name="kafka-clients" rev="3.9.1" conf="source->master"/>
    <dependency org="org.apache.commons" name="commons-pool2" rev="2.12.0" conf="source->master"/>
  </dependencies>
</ivy-module>
"""
BENCH_PROGRAMS = {"wrk": "wrk", "redis-server": "redis-server"}


class Part(NamedTuple):
    """`inputs`: the files whose contents decide whether the part is up to date. `needs`: parts that come first."""

    words: str
    seconds: int
    inputs: tuple[str, ...] = ("pyproject.toml",)
    needs: tuple[str, ...] = ()


KERNEL_SOURCES = ("setup.py", "src/topics/formats/compiled_kernel.pyx", "src/topics/protocol/compiled_record_text.pyx")
PARTS = {
    "venv": Part("a Python environment in .venv", 5, inputs=()),
    "packages": Part("the packages that topics needs", 10, needs=("venv",)),
    "kernels": Part("two compiled kernels", 9, KERNEL_SOURCES, needs=("packages",)),
    "builder": Part("an environment to build wheels in", 9, needs=("packages",)),
    "compiled": Part(
        "topics with its hot modules compiled", 30, ("setup.py", "pyproject.toml", "src"), needs=("kernels", "builder")
    ),
    "plain": Part("topics without compiled modules", 4, ("setup.py", "pyproject.toml", "src"), needs=("builder",)),
    "lowest": Part("the lowest versions of the packages that topics takes", 20, needs=("tools", "spark")),
    "tools": Part("the packages of tests, lint and docs", 45, needs=("kernels",)),
    "spark": Part("Spark, a download of 450 MB", 50, needs=("kernels",)),
    "bench": Part("the packages of the benchmarks", 3, needs=("kernels",)),
    "java": Part("Java for Spark", 20, inputs=()),
    "kafka": Part("Kafka, the peer of the benchmarks on Spark", 60, ("make_env.py",), needs=("spark", "java")),
    "test-programs": Part("a browser and other programs of the tests", 45, inputs=()),
    "bench-programs": Part("the load and the peer of the benchmarks", 8, inputs=()),
}


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - run by whichever Python `make` finds
        version = ".".join(map(str, sys.version_info[:3]))
        sys.exit(
            f"make: topics needs Python 3.11 or newer, {sys.executable} is {version}; name a newer one: "
            "make PYTHON=python3.13"
        )
    missing = [name for name in in_order(sys.argv[1:]) if not is_there(name)]
    if not missing:
        return
    seconds = sum(PARTS[name].seconds for name in missing)
    print(f"setting up, once: about {seconds} s on two cores")
    for name in missing:
        packages = " ".join(debian_packages(name))
        print(f"  - {PARTS[name].words}" + (f" (Debian: {packages})" if packages else ""))
    for number, name in enumerate(missing, 1):
        title = f"[{number}/{len(missing)}] {PARTS[name].words}"
        if not sys.stdout.isatty():
            print(title, flush=True)
        MAKERS[name](title)
        if PARTS[name].inputs:
            note = noted(name)
            note.parent.mkdir(exist_ok=True)
            note.write_text(digest(PARTS[name].inputs))


def in_order(names: Sequence[str]) -> list[str]:
    """The parts with all that they need, each once, needed ones first."""
    order: dict[str, None] = {}
    for name in names:
        for needed in in_order(PARTS[name].needs):
            order[needed] = None
        order[name] = None
    return list(order)


def is_there(name: str) -> bool:
    if name == "venv":
        return (VENV / "bin" / "pip").exists()
    if not PARTS[name].inputs:
        return not debian_packages(name)
    folder = ROOT / "build" / name
    if name in {"builder", "compiled", "plain", "lowest", "kafka"} and not folder.exists():
        return False
    note = noted(name)
    return note.exists() and note.read_text() == digest(PARTS[name].inputs)


def noted(name: str) -> Path:
    return VENV / "parts" / name


def digest(inputs: tuple[str, ...]) -> str:
    found = hashlib.sha256()
    for name in inputs:
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so":
                found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


# What each part is made of.


def make_venv(title: str) -> None:
    try:
        import ensurepip  # noqa: F401
    except ImportError:  # Debian has it in a package of its own.
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        if not apt_install(title, [package]):
            sys.exit("make: this Python cannot make environments; on Debian: sudo apt-get install " + package)
    step(title, [sys.executable, "-m", "venv", "--clear", str(VENV)])


def make_packages(title: str) -> None:
    # Dependency groups came with pip 25.1; a new environment has the pip that its interpreter was built with.
    step(title, [*PIP, "install", "--no-compile", "pip>=25.1"])
    step(title, [*INSTALL, "--group", "kernels"])
    install_sources(title)


def install_sources(title: str, extras: str = "", *also: str) -> None:
    """An editable install, with the packages of extras. The kernels are a part of their own."""
    step(title, [*INSTALL, "--no-build-isolation", "--editable", f".{extras}", *also], TOPICS_COMPILE="0")


def make_kernels(title: str) -> None:
    from setup import missing_packages

    if missing_packages() and not apt_install(title, missing_packages()):
        print(
            "make: without a C compiler topics is plain Python, and needs twice the CPU; on Debian: sudo apt-get "
            "install " + " ".join(missing_packages()),
            file=sys.stderr,
        )
        return
    step(title, [str(PYTHON), "setup.py", "build_ext", "--inplace"], TOPICS_COMPILE="1")


def make_builder(title: str) -> None:
    """The isolated environment that pip creates for a build, created once and kept. It has the packages of
    `build-system.requires` and no others, so a requirement that is missing there fails here as it does for users."""
    import tomllib

    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    step(title, [str(PYTHON), "-m", "venv", "--clear", str(ROOT / "build" / "builder")])
    step(title, [*BUILDER_PIP, "install", "--no-compile", *requires])


def make_form(name: str, title: str, compile_wish: str) -> None:
    wheels, folder = ROOT / "build" / f"{name}-wheel", ROOT / "build" / name
    # In `lib…` setuptools keeps modules that are not in the sources any more, and puts them into the wheel.
    for old in (wheels, folder, *(ROOT / "build").glob("lib*")):
        shutil.rmtree(old, ignore_errors=True)
    build = [*BUILDER_PIP, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels), "."]
    step(title, build, TOPICS_COMPILE=compile_wish)
    (wheel,) = wheels.iterdir()
    step(title, [*PIP, "install", "--no-deps", "--target", str(folder), str(wheel)])


def make_lowest(title: str) -> None:
    """An environment with the lowest allowed version of each dependency, and without uvloop. Spark, which has only one
    allowed version, and the packages that only tests import come from .venv."""
    folder = ROOT / "build" / "lowest"
    step(title, [str(PYTHON), "-m", "venv", "--clear", str(folder)])
    step(title, [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-compile", *lowest_versions()])
    version = "python{}.{}".format(*sys.version_info)
    packages = folder / "lib" / version / "site-packages"
    (packages / "uvloop.py").write_text("raise ImportError('these tests run on asyncio')\n")
    (packages / "of_tests.pth").write_text(f"{VENV / 'lib' / version / 'site-packages'}\n")


def lowest_versions() -> list[str]:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(each for extra in extras.values() for each in extra)]
    parts = (re.match(r"([\w-]+)[^>]*>=([\d.]+)", each) for each in wanted)
    return sorted({f"{part[1]}=={part[2]}" for part in parts if part and part[1] not in {"pyspark", "uvloop"}})


def make_kafka(title: str) -> None:
    """A broker and Spark's source for Kafka, by the resolver that comes with Spark."""
    folder = ROOT / "build" / "kafka"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ivy.xml").write_text(KAFKA_JARS)
    jars = next((VENV / "lib").glob("python*/site-packages/pyspark/jars"))
    resolver = ["java", "-cp", str(next(jars.glob("ivy-*.jar"))), "org.apache.ivy.Main", "-m2compatible"]
    resolver += ["-ivy", str(folder / "ivy.xml"), "-retrieve", f"{folder}/[conf]/[artifact]-[revision].[ext]"]
    if not step(title, resolver, fails=True):
        shutil.rmtree(folder)
        print("make: Maven Central has no jars of Kafka, or is out of reach: no figures beside Kafka", file=sys.stderr)


MAKERS = {
    "venv": make_venv,
    "packages": make_packages,
    "kernels": make_kernels,
    "builder": make_builder,
    "compiled": lambda title: make_form("compiled", title, "1"),
    "plain": lambda title: make_form("plain", title, "0"),
    "lowest": make_lowest,
    "tools": lambda title: install_sources(title, "[streams]", "--group", "test", "--group", "lint", "--group", "docs"),
    "spark": lambda title: install_sources(title, "[spark]"),
    "kafka": make_kafka,
    "bench": lambda title: step(title, [*INSTALL, "--group", "bench"]),
    "java": lambda title: make_programs("java", title, "nothing runs on Spark without Java 17 or newer"),
    "test-programs": lambda title: make_programs(
        "test-programs", title, "some tests are skipped without these programs"
    ),
    "bench-programs": lambda title: make_programs("bench-programs", title, "the server is not measured without them"),
}


# Debian packages.


def debian_packages(name: str) -> list[str]:
    if name == "java":
        return [] if has_java() else ["openjdk-17-jre-headless"]
    programs = {"test-programs": TEST_PROGRAMS, "bench-programs": BENCH_PROGRAMS}.get(name, {})
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    return [package for program, package in programs.items() if shutil.which(program, path=path) is None]


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        return False
    said = subprocess.run([java, "-version"], stderr=subprocess.PIPE, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    return version is not None and int(version[1]) >= 17


def make_programs(name: str, title: str, loss: str) -> None:
    packages = debian_packages(name)
    if apt_install(title, packages):
        return
    # Newer releases of Debian have a newer Java.
    if name == "java" and apt_install(title, ["default-jre-headless"]):
        return
    print(f"make: {loss}; on Debian: sudo apt-get install {' '.join(packages)}", file=sys.stderr)


def apt_install(title: str, packages: list[str]) -> bool:
    """Whether they are installed. Services that come with them are not started."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "SYSTEMD_OFFLINE": "1", "RUNLEVEL": "1"}
    install = ["apt-get", "-y", "install", "--no-install-recommends", *packages]
    return all(step(title, command, fails=True, **quiet) for command in (["apt-get", "update"], install))


# Steps.


def step(title: str, command: list[str], *, fails: bool = False, **environ: str) -> bool:
    """Runs a command and shows how far it is. Its output is shown only if it fails, which ends `make`, or returns False
    with `fails`."""
    output: list[str] = []
    now = [""]
    with subprocess.Popen(
        command,
        cwd=str(ROOT),
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    ) as process:
        reader = threading.Thread(target=read, args=(process.stdout, output, now))
        reader.start()
        show(title, now, reader)
        reader.join()
    if process.returncode and not fails:
        print("".join(output)[-8000:], file=sys.stderr)
        sys.exit("make: this failed: " + " ".join(command))
    return not process.returncode


def read(lines: IO[str], output: list[str], now: list[str]) -> None:
    for line in lines:
        progress = re.match(r"Progress (\d+) of (\d+)", line)
        if progress is not None:
            now[0] = f"{now[0].partition(',')[0]}, {100 * int(progress[1]) // max(1, int(progress[2]))} %"
            continue
        output.append(line)
        piece = re.match(r"\s*(?:Collecting|Get:\d+ \S+ \S+ \S+|Setting up|Downloading) ([\w.\[\]-]+)", line)
        if piece is not None:
            now[0] = piece[1]
        elif line.startswith("Installing collected packages"):
            now[0] = f"installing {line.count(',') + 1} packages"


def show(title: str, now: list[str], reader: threading.Thread) -> None:
    if not sys.stdout.isatty():
        return
    began = time.monotonic()
    width = shutil.get_terminal_size().columns - 1
    while reader.is_alive():
        text = f"{title}: {int(time.monotonic() - began)} s {now[0]}"
        print("\r\033[K" + text[:width], end="", flush=True)
        reader.join(0.2)
    print(f"\r\033[K{title}: {int(time.monotonic() - began)} s", flush=True)


if __name__ == "__main__":
    main()
