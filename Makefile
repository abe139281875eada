# The tasks of a checkout: `make help` lists them. They need make and Python 3.11 or newer.

# The first that is new enough is used; `make PYTHON=/path/to/python test` names another.
CANDIDATES = python3 python3.14 python3.13 python3.12 python3.11 python
NEW_ENOUGH = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in $(CANDIDATES); do "$$python" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$python" && break; done)
NO_PYTHON = ferrule needs Python 3.11 or newer with its venv module; tried: $(or $(PYTHON),$(CANDIDATES)). Say 'make PYTHON=/path/to/python ...'.

VENV  := .venv
BENCH := .venv-bench
BIN   := $(VENV)/bin
# Twice quiet: no advice of pip, errors only.
PIP_INSTALL := -m pip install -qq --disable-pip-version-check
# Tests start processes of their own, so two workers use a small machine fully. `make PYTEST_ARGS= test` uses one.
PYTEST_ARGS := -n 2
# The tests of types, where the checkout has them.
TYPING_TESTS = $(wildcard tests/typing)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test matrix check kill-test mutants fuzz real-servers bench constrained walk ui-test screenshots conformance mcp-clients front-ends docs \
	coverage format lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.run ## an agent at work in the terminal, no API key needed
	@$(BIN)/python -m ferrule.cli.demo

test: $(VENV)/.dev ## all tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

matrix: $(VENV)/.dev ## all tests on every Python of this machine from 3.11 on, each in a venv of its own
	@$(BIN)/python tests/matrix.py $(PYTHONS) -- $(PYTEST_ARGS)

check: $(VENV)/.dev ## all checks before a commit: format, lint, types, tests
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(if $(TYPING_TESTS),$(BIN)/mypy $(TYPING_TESTS))
	$(BIN)/python -m pytest $(PYTEST_ARGS)

kill-test: $(VENV)/.dev ## kill, interrupt and race agents, and count the effects of their tools
	@PYTHONPATH=tests $(BIN)/python -m killing

mutants: $(VENV)/.dev ## break the library in seven ways, and show that the kill test catches each
	@$(BIN)/python tests/killing/mutants.py

FUZZED := tests/values/calls/text/test_nothing_lost.py tests/tools/arguments/test_like_jsonschema.py

fuzz: $(VENV)/.dev ## random inputs to everything that parses foreign text, its time as inputs grow (SPAN=600: ten minutes each), then long property tests
	@PYTHONPATH=tests $(BIN)/python -m fuzzing --seconds $(or $(SPAN),120)
	@PYTHONPATH=tests $(BIN)/python -m fuzzing --seconds $(or $(SPAN),120) --doubling
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --hypothesis-profile=long $(FUZZED)

real-servers: $(VENV)/.dev ## the tests with real MCP and model servers; unlike in `make test`, a failed install is an error
	@FERRULE_REAL_SERVERS=1 $(BIN)/python -m pytest $(PYTEST_ARGS) tests/integration/test_mcp_real_servers.py tests/integration/test_mcp_modes.py tests/integration/test_model_servers.py

bench: $(BENCH)/.bench ## speed compared with peers, in a venv of its own
	@$(BENCH)/bin/python benchmarks/run.py

constrained: $(VENV)/.dev ## constrained calls: how many are valid, with every kind of argument, and what the masks cost
	@PYTHONPATH=tests $(BIN)/python -m constrained
	@PYTHONPATH=tests $(BIN)/python -m constrained_models

walk: $(VENV)/.dev ## count the files of ferrule that one call passes through
	@$(BIN)/python benchmarks/walk.py --list

ui-test: $(VENV)/.dev ## `ferrule ui` in the system's Chromium: two people, keys, no script, lost connections, axe-core (apt-get install chromium)
	@FERRULE_UI_TEST=1 $(BIN)/python -m pytest $(PYTEST_ARGS) tests/web/test_browser.py

screenshots: $(VENV)/.dev ## a picture of every page of `ferrule ui`, light, dark and narrow, in build/screenshots
	@PYTHONPATH=tests $(BIN)/python -m page_pictures

conformance: $(VENV)/.dev ## the suites of the Model Context Protocol, both sides; installs node and the suite into a cache
	@$(BIN)/python conformance/run.py

mcp-clients: $(VENV)/.dev ## drive `ferrule serve` by eleven foreign MCP clients; installs each into a cache (CLIENTS="fastmcp-4 dspy": these)
	@$(BIN)/python conformance/clients/run.py $(CLIENTS)

front-ends: $(VENV)/.dev ## drive a chat service by the clients of AG-UI and Vercel's AI SDK; installs them into a cache (CLIENTS="ag-ui ai6": these)
	@$(BIN)/python conformance/front_ends/run.py $(CLIENTS)

docs: $(VENV)/.dev ## test the pages in docs/
	@$(BIN)/python -m pytest tests/docs

coverage: $(VENV)/.dev ## branch coverage of the package, by file
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest --quiet $(PYTEST_ARGS); failed=$$?; \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$failed

format: $(VENV)/.dev ## format the code, and apply the safe fixes of ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# No annotations and no header: they would name paths and the index of this machine.
COMPILE = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
# dev.txt comes first: the others follow its pins, so that tests, demo and benchmarks use one version of a package.
lock: $(VENV)/.dev ## update every pin in requirements/
	$(COMPILE) pyproject.toml requirements/dev.in --extra cli --extra langchain --extra local --extra mcp --extra otel --extra prices --extra ui -o requirements/dev.txt
	$(COMPILE) pyproject.toml requirements/run.in --extra cli --extra mcp --extra ui -c requirements/dev.txt -o requirements/run.txt
	$(COMPILE) pyproject.toml requirements/bench.in --extra cli --extra mcp -c requirements/dev.txt -o requirements/bench.txt

clean: ## remove the venvs and all caches
	rm -rf $(VENV) $(BENCH) .venv-3.* build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage .coverage.* htmlcov
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Stamps: each records that its list is installed.
# run.txt and dev.txt share a venv; their pins agree (see `lock`).
$(VENV)/bin/python:
	$(call make_venv,$(VENV))

$(VENV)/.run: requirements/run.txt pyproject.toml | $(VENV)/bin/python
	$(call install,$(VENV),requirements/run.txt)

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(VENV)/bin/python
	$(call install,$(VENV),requirements/dev.txt)
	@touch $(VENV)/.run  # dev.txt holds all of run.txt

$(BENCH)/bin/python:
	$(call make_venv,$(BENCH))

$(BENCH)/.bench: requirements/bench.txt pyproject.toml | $(BENCH)/bin/python
	$(call install,$(BENCH),requirements/bench.txt)

define make_venv
@"$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "$(NO_PYTHON)" >&2; exit 1; }
@echo "making $(1)"
@"$(PYTHON)" -m venv $(1)
endef

# Without build isolation, because the list pins the build backend.
define install
@echo "installing $(2) into $(1)"
@$(1)/bin/python $(PIP_INSTALL) --require-hashes -r $(2)
@$(1)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
@touch $@
endef
