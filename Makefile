# Everything one does with a checkout of ferrule. It needs only make and a Python of 3.11 or newer: `make help`.

# The first of these that is new enough; `make PYTHON=/path/to/python test` names another.
CANDIDATES = python3 python3.14 python3.13 python3.12 python3.11 python
NEW_ENOUGH = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in $(CANDIDATES); do "$$python" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$python" && break; done)
NO_PYTHON = ferrule needs Python 3.11 or newer with its venv module; tried: $(or $(PYTHON),$(CANDIDATES)). Say 'make PYTHON=/path/to/python ...'.

VENV  := .venv
BENCH := .venv-bench
BIN   := $(VENV)/bin
# Quiet twice: pip's advice about the machine it runs on is nobody's business here; errors are still printed.
PIP_INSTALL := -m pip install -qq --disable-pip-version-check
# Tests bring their own processes: two workers use a small machine fully, and more would only quarrel. `make PYTEST_ARGS= test` for one.
PYTEST_ARGS := -n 2
# What the type checkers and the formatter look at, as far as it is there.
TYPING_TESTS = $(wildcard tests/typing)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check kill-test real-servers bench walk conformance docs coverage format lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.run ## a whole run on the terminal, without a key
	@$(BIN)/python -m ferrule.cli.demo

test: $(VENV)/.dev ## all tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.dev ## what must hold before a commit: format, lint, types, tests (house, docs and examples are tests)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(if $(TYPING_TESTS),$(BIN)/mypy $(TYPING_TESTS))
	$(BIN)/python -m pytest $(PYTEST_ARGS)

kill-test: $(VENV)/.dev ## kill an agent at every point of its runs, and count what its tools did
	@$(BIN)/python tests/killing.py

real-servers: $(VENV)/.dev ## the tests with real MCP servers; here an install that fails is an error
	@FERRULE_REAL_SERVERS=1 $(BIN)/python -m pytest $(PYTEST_ARGS) tests/integration/test_mcp_real_servers.py

bench: $(BENCH)/.bench ## speed and cost beside peers, in a venv of its own
	@$(BENCH)/bin/python benchmarks/run.py

walk: $(VENV)/.dev ## how many files of ferrule one call passes through
	@$(BIN)/python benchmarks/walk.py --list

conformance: $(VENV)/.dev ## the suites of the Model Context Protocol, both sides; installs node and the suite into a cache
	@$(BIN)/python conformance/run.py

docs: $(VENV)/.dev ## prove the claims of the pages in docs/
	@$(BIN)/python -m pytest tests/docs

coverage: $(VENV)/.dev ## branch coverage of the package, by file
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest --quiet $(PYTEST_ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

format: $(VENV)/.dev ## format, and mend what ruff can mend safely
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The annotations, which would name the machine's paths, and the header, which would name its index, are left out.
COMPILE = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
# dev.txt first: the others follow its pins, so that one version of a package is tested, shown and measured.
lock: $(VENV)/.dev ## move every pin in requirements/ to the newest that fits
	$(COMPILE) pyproject.toml requirements/dev.in --extra cli --extra langchain --extra mcp -o requirements/dev.txt
	$(COMPILE) pyproject.toml requirements/run.in --extra cli --extra mcp -c requirements/dev.txt -o requirements/run.txt
	$(COMPILE) pyproject.toml requirements/bench.in --extra cli --extra mcp -c requirements/dev.txt -o requirements/bench.txt

clean: ## remove the venvs and everything that tools left behind
	rm -rf $(VENV) $(BENCH) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage .coverage.* htmlcov
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Stamps. Each records that its list is installed, and is older than whatever would change that list.
# run.txt and dev.txt share a venv: their pins agree (see `lock`), so dev only adds to run.
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

# ferrule itself goes in without build isolation: the backend is pinned in the list, not fetched as it comes.
define install
@echo "installing $(2) into $(1)"
@$(1)/bin/python $(PIP_INSTALL) --require-hashes -r $(2)
@$(1)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
@touch $@
endef
