# Everything a developer runs. Each target sets up .venv and whatever is missing in it by itself: see make_env.py.
# Another interpreter: make PYTHON=python3.13 test. Fewer test processes: make WORKERS=1 test. The order, the random
# examples and the sampled points of an earlier run: make SEED=123 test.

PYTHON ?= python3
WORKERS ?= auto
BIN := .venv/bin
NEED = @command -v $(PYTHON) >/dev/null || { \
    echo "make: $(PYTHON) not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python" >&2; \
    exit 1; }; $(PYTHON) make_env.py
# Where the environment turns byte code off, as in many containers, each of the thousands of processes that the tests
# start would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
ifndef SEED
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif
PYTEST := -m pytest -n $(WORKERS) --dist worksteal --randomly-seed=$(SEED) --hypothesis-seed=$(SEED)
export TOPICS_TEST_SEED := $(SEED)
# The tests run what a user installs: the wheel with its compiled modules. For one test on the sources:
# .venv/bin/pytest tests/engine/test_engine.py
COMPILED := PYTHONPATH=build/compiled
# What runs in CI on plain Python, on asyncio and with the lowest versions of all packages. What runs over several
# protocols runs over HTTP/1.1 only.
PLAIN_SAMPLE := tests/formats tests/engine/test_engine.py tests/server/contract tests/server/http tests/server/streams tests/process/test_iggy_client.py \
    tests/client/test_parity.py tests/cli/test_remote.py tests/crash/test_writers_sweep.py tests/spark/reading/test_source.py
TEST_PARTS := compiled tools spark java test-programs
# For mypy: what Spark is needed for is not checked without it.
WITHOUT_SPARK := --exclude topics/.*spark --follow-imports=silent --disable-error-code import-not-found

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run run-compiled demo demo-embedded test test-plain test-full compiled docs reference pictures bench \
    bench-spark lint format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Start the server from the sources (settings: TOPICS_… in the environment, or topics.toml)
	$(NEED) kernels
	@echo "running the sources, with two compiled kernels; make run-compiled needs a third less CPU for a request"
	@exec $(BIN)/topics serve

run-compiled: ## Start the server with all compiled modules, as in the wheel
	$(NEED) compiled
	@$(COMPILED) exec $(BIN)/topics serve

demo: ## Events in, counted by Spark, watched live, archived and queried
	$(NEED) spark java
	@$(BIN)/topics demo --spark

demo-embedded: ## Run the demo of the embedded engine
	$(NEED) kernels
	@$(BIN)/python -m topics.demos.embedded

test: ## Lint, check types, run the tests
	$(NEED) $(TEST_PARTS)
	@$(MAKE) --no-print-directory lint
	@$(COMPILED) $(BIN)/python $(PYTEST)

test-plain: ## A sample of the tests without anything compiled, on asyncio, with the lowest versions of packages
	$(NEED) plain lowest java
	@PYTHONPATH=build/plain build/lowest/bin/python $(PYTEST) -W ignore::DeprecationWarning -k "not h2c" $(PLAIN_SAMPLE)

test-full: ## The same with the slow sweeps, all of them in full
	$(NEED) $(TEST_PARTS) kafka
	@$(MAKE) --no-print-directory lint
	@$(COMPILED) TOPICS_TEST_FULL=1 $(BIN)/python $(PYTEST) -m "" --timeout=1800

compiled: ## Build the wheel with all compiled modules, and unpack it into build/compiled
	$(NEED) compiled

docs: ## Build the docs site, with its search, into build/site
	$(NEED) tools
	@$(BIN)/python -m docs_build.site

reference: ## Write docs/reference and docs/llms.txt anew, from the code
	$(NEED) tools
	@$(BIN)/python -m docs_build.reference
	@$(BIN)/python -m docs_build.llms

pictures: ## Draw the pictures of the docs anew, and record the one of README.md
	$(NEED) tools
	@$(BIN)/python -m docs_build.pictures
	@$(BIN)/python -m docs_build.recording

bench: ## Measure speed and size on this machine, with Redis beside it
	$(NEED) compiled bench bench-programs
	@$(COMPILED) $(BIN)/topics bench

bench-spark: ## Measure reads, writes and jobs on Spark, with Kafka beside it
	$(NEED) compiled kafka
	@$(COMPILED) $(BIN)/topics bench spark --kafka-jars build/kafka

lint: ## Check style, format and types; those of topics.spark only where Spark is installed
	$(NEED) tools
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo 'lint: run `make format` to fix the format' >&2; exit 1; }
	@$(BIN)/mypy $$([ -e .venv/parts/spark ] || echo $(WITHOUT_SPARK))

format: ## Format the code and fix what can be fixed safely
	$(NEED) tools
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

clean: ## Remove caches and build products; keeps .venv and data
	@rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
