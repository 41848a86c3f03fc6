# Everything a developer runs. Each target sets up .venv and whatever is missing in it by itself.
# Another interpreter: make PYTHON=python3.13 test. Fewer test processes: make WORKERS=1 test. The order of an earlier
# run: make ORDER=123 test.

PYTHON ?= python3
WORKERS ?= auto
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(if $(ORDER),--randomly-seed=$(ORDER))
SOURCES := $(shell find src -type f -not -path '*/__pycache__/*')
# Ends with 1 where nothing can be compiled, or nothing shall be (TOPICS_COMPILE=0).
COMPILES := $(BIN)/python hatch_build.py
# What runs on the plain form in CI: codecs, the engine, one part of the HTTP contract, one crash sweep.
PLAIN_SAMPLE := tests/formats tests/engine/test_engine.py tests/server/contract/test_append.py \
    tests/crash/test_writers_sweep.py
# Each program and its package of Debian.
TEST_PROGRAMS := promtool:prometheus systemd-analyze:systemd mandoc:mandoc redis-server:redis-server nats-server:nats-server
SPARK_STARTS := $(BIN)/python -c 'from topics.spark.session import require_java; require_java()'

# Installs packages of Debian; who may not do that is told to: $(call apt_install,PACKAGES,WHAT IS WRONG WITHOUT THEM). It
# fails when they are not there in the end. Services that come with them are not started.
define apt_install
{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing $(1)" && apt-get -qq update && \
    SYSTEMD_OFFLINE=1 RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends $(1) >/dev/null || \
    { echo "make: $(2); on Debian: sudo apt-get install $(1)" >&2; false; }; }
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run demo demo-embedded test test-plain test-full compiled docs reference pictures browser java programs bench \
    bench-peers bench-spark lint format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.package ## Start the server (settings: TOPICS_… in the environment, or topics.toml)
	@exec $(BIN)/topics serve

demo: $(VENV)/.spark java ## Events in, counted by Spark, watched live, archived and queried
	@$(BIN)/python -m topics.demos.pipeline

demo-embedded: $(VENV)/.package ## Run the demo of the embedded engine
	@$(BIN)/python -m topics.demos.embedded

test: lint browser java programs ## Lint, check types, run the tests
	@$(PYTEST)

test-plain: $(VENV)/.tools ## A sample of the tests on plain Python, without the compiled modules
	@PYTHONPATH=src $(PYTEST) $(PLAIN_SAMPLE)

test-full: lint browser java programs ## The same with the slow sweeps, all of them in full
	@TOPICS_TEST_FULL=1 $(PYTEST) -m "" --timeout=1800

compiled: $(VENV)/.build ## Compile into build/compiled, for PYTHONPATH=build/compiled; installs nothing
	@$(COMPILES) build/compiled

docs: $(VENV)/.tools ## Build the docs site, with its search, into build/site
	@$(BIN)/python -m docs_build.site

reference: $(VENV)/.tools ## Write docs/reference and docs/llms.txt anew, from the code
	@$(BIN)/python -m docs_build.reference
	@$(BIN)/python -m docs_build.llms

pictures: $(VENV)/.tools ## Draw the pictures of the docs anew, and record the one of README.md
	@$(BIN)/python -m docs_build.pictures
	@$(BIN)/python -m docs_build.recording

# Without it the tests in tests/browser are skipped.
browser:
	@command -v chromium >/dev/null || $(call apt_install,chromium,nothing is tested in a browser without Chromium) || true

# Java for Spark: the one of JAVA_HOME or of the path, if Spark starts with it. Without it the tests on Spark are skipped,
# and what cannot do without it says so.
java: $(VENV)/.spark
	@$(SPARK_STARTS) 2>/dev/null || $(call apt_install,openjdk-17-jre-headless,) 2>/dev/null || \
	    $(call apt_install,default-jre-headless,nothing runs on Spark without a JRE 17 or newer) || true

# Programs that judge what `topics generate` makes, and the peers of `topics import`. Without one its tests are skipped.
programs:
	@missing=; for pair in $(TEST_PROGRAMS); do \
	    PATH="$$PATH:/usr/sbin" command -v $${pair%:*} >/dev/null || missing="$$missing $${pair#*:}"; done; \
	    [ -z "$$missing" ] || $(call apt_install,$$missing,some tests are skipped without these programs) || true

bench: $(VENV)/.bench bench-peers ## Measure speed and size on this machine, with Redis beside it
	@$(BIN)/topics bench

# The load comes from wrk, the peer is Redis. Without them the rest is measured.
bench-peers:
	@command -v wrk >/dev/null && command -v redis-benchmark >/dev/null && command -v redis-server >/dev/null || \
	    $(call apt_install,wrk redis-server,the server is not measured without wrk and Redis) || true

bench-spark: $(VENV)/.spark java ## Measure reads, writes and jobs on Spark
	@$(BIN)/topics bench spark

lint: $(VENV)/.tools $(VENV)/.spark ## Check style, format and types
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo 'lint: run `make format` to fix the format' >&2; exit 1; }
	@$(BIN)/mypy

format: $(VENV)/.tools ## Format the code and fix what can be fixed safely
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

clean: ## Remove caches and build products; keeps .venv and data
	@rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamps below .venv say what is installed there; a change of pyproject.toml makes them stale.

# The wheel, not the sources: an edit of a source makes another wheel. Its modules are compiled where that is possible.
$(VENV)/.package: $(SOURCES) hatch_build.py $(VENV)/.build $(VENV)/.form
	@echo "building topics ($$(cat $(VENV)/.form)) and installing it into $(VENV)"
	@rm -rf $(VENV)/wheel
	@TOPICS_COMPILE=$$([ "$$(cat $(VENV)/.form)" = compiled ] && echo 1 || echo 0) $(BIN)/python -m pip wheel --quiet \
	    --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir $(VENV)/wheel .
	@$(PIP_INSTALL) --force-reinstall --no-deps $(VENV)/wheel/*.whl
	@touch $@

# The dependencies of the package and what builds it, in one environment: a build of its own would install them again
# for each wheel. The editable install brings the dependencies only: the wheel replaces it.
$(VENV)/.build: pyproject.toml | $(VENV)/.pip
	@echo "installing what topics needs into $(VENV)"
	@TOPICS_COMPILE=0 $(PIP_INSTALL) --editable ".[streams]" --group build
	@touch $@

# `compiled` or `plain`: what the next wheel is. The file changes only when that does.
$(VENV)/.form: FORCE | $(VENV)/.build
	@[ "$$TOPICS_COMPILE" = 0 ] || $(COMPILES) 2>/dev/null || { packages=$$($(COMPILES) --packages); \
	    $(call apt_install,$$packages,topics runs as plain Python and needs twice the CPU without a C compiler); } || true
	@form=$$($(COMPILES) 2>/dev/null && echo compiled || echo plain); \
	    [ "$$(cat $@ 2>/dev/null)" = $$form ] || echo $$form > $@
FORCE:

$(VENV)/.tools: pyproject.toml | $(VENV)/.package
	@echo "installing the test, lint and docs tools into $(VENV)"
	@$(PIP_INSTALL) --group test --group lint --group docs
	@touch $@

# By itself: Spark is a download of 450 MB, which a server does without.
$(VENV)/.spark: pyproject.toml | $(VENV)/.package
	@echo "installing Spark into $(VENV)"
	@$(PIP_INSTALL) "$$(echo $(VENV)/wheel/*.whl)[spark,streams]"
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/.package
	@echo "installing the bench tools into $(VENV)"
	@$(PIP_INSTALL) --group bench
	@touch $@

# Dependency groups came with pip 25.1; a fresh environment brings whatever the interpreter was built with.
$(VENV)/.pip: | $(BIN)/python
	@$(PIP_INSTALL) "pip>=25.1"
	@touch $@

# Debian ships `ensurepip` in a package of its own, without which `python3 -m venv` leaves a broken folder behind.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "make: $(PYTHON) not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make: topics needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1);" \
	         "name a newer one: make PYTHON=python3.13" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    $(call apt_install,$$package,$(PYTHON) cannot make virtual environments); }
	@$(PYTHON) -m venv $(VENV)
