# The daily tasks of a checkout: `make help` lists them. They need make and Python 3.11 or newer.
# Rarer ones are in scripts/, one file each.

# The first Python that is new enough is used; `make PYTHON=/path/to/python test` names another.
CANDIDATES = python3 python3.14 python3.13 python3.12 python3.11 python
NEW_ENOUGH = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in $(CANDIDATES); do "$$python" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$python" && break; done)
NO_PYTHON = ferrule needs Python 3.11 or newer with its venv module; tried: $(or $(PYTHON),$(CANDIDATES)). Say 'make PYTHON=/path/to/python ...'.

SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN     := .venv/$(SCRIPTS)
# Many tests wait for processes that they start, so three workers keep even two cores busy; each
# worker more collects all tests again. `make PYTEST_ARGS= test` uses one.
PYTEST_ARGS := -n 3 --dist worksteal
# The embedded model's threads wait for one another in a loop: beside other work, they take ten
# times as long. So its tests have the machine for themselves; only their files are collected.
define run_tests
@$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not needle"
@$(BIN)/python -m pytest -m needle $$(grep -rl --include='test_*.py' 'mark\.needle' tests)
endef
# Tests start hundreds of processes: without bytecode, each would compile all of ferrule again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check lint kill-test fuzz bench docs ui-test pg-test conformance release clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  and in scripts/:"
	@for script in scripts/*.sh; do printf "  %-26s %s\n" "$$script" "$$(sed -n '2s/^# //p' "$$script")"; done

demo: .venv/.run ## an agent at work in the terminal, no API key needed
	@$(BIN)/python -m ferrule.cli.demo

test: .venv/.dev ## all tests
	$(run_tests)

# Checking the types keeps one core busy for minutes, and the tests leave much of the other idle.
check: .venv/.dev ## all checks before a commit: format, lint, types, tests
	@$(MAKE) --no-print-directory -j2 lint test

# The script calls make itself, which must not wait for a job of this one.
lint:
	@MAKEFLAGS= scripts/lint.sh

kill-test: .venv/.dev ## kill, interrupt and race agents, and count the effects of their tools
	@PYTHONPATH=tests $(BIN)/python -m killing

FUZZED := tests/text_calls/test_nothing_lost.py tests/tools/arguments/test_like_jsonschema.py \
          tests/tools/test_mcp_definition.py tests/tools/mcp/test_names.py tests/tools/mcp/test_result.py \
          tests/adapters/test_round_trips.py tests/schema/test_validator.py tests/schema/lowering/test_lower.py \
          tests/front_ends/test_junk.py tests/approval/test_paths.py tests/runs/test_state_machine.py \
          tests/runs/test_resume_migration.py tests/integration/test_mcp_round_trip.py

fuzz: .venv/.dev ## random inputs to everything that parses foreign text, its time as inputs grow (SPAN=600: ten minutes each), then long property tests
	@PYTHONPATH=tests $(BIN)/python -m fuzzing --seconds $(or $(SPAN),120)
	@PYTHONPATH=tests $(BIN)/python -m fuzzing --seconds $(or $(SPAN),120) --doubling
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --hypothesis-profile=long $(FUZZED)

bench: .venv-bench/.bench .venv-bench-dspy/.bench-dspy ## speed compared with other libraries, in venvs of their own (ONLY=steps,http PEERS=smolagents,dspy: these)
	@.venv-bench/$(SCRIPTS)/python benchmarks/run.py

docs: .venv/.dev .venv-docs/.docs ## run every block of the pages, then build the site into build/site; dead links and missing references fail
	@$(BIN)/python -m pytest --quiet $(PYTEST_ARGS) tests/docs
	@.venv-docs/$(SCRIPTS)/python site/build.py

ui-test: .venv/.dev ## `ferrule ui` in the system's Chromium, which must be there (apt-get install chromium; for Ctrl-F xvfb xdotool)
	@FERRULE_UI_TEST=1 $(BIN)/python -m pytest $(PYTEST_ARGS) tests/web/test_browser.py

pg-test: .venv/.dev ## the tests with a real Postgres, which they start; unlike in `make test`, none is an error (apt-get install postgresql pgbouncer)
	@FERRULE_PG_TEST=1 FERRULE_LONG_TEST=1 $(BIN)/python -m pytest $(PYTEST_ARGS) tests/runs/store tests/integration/test_workers.py
	@FERRULE_PG_TEST=1 $(BIN)/python -m pytest $(PYTEST_ARGS) -k postgres tests/runs tests/tools tests/programs

conformance: .venv/.dev ## the suites of the Model Context Protocol, both sides; installs node and the suite into a cache
	@$(BIN)/python conformance/run.py

release: | $(BIN)/python ## build a wheel and an sdist into dist/, check them, run the demo from the wheel (SIGN=KEY: sign all with gpg)
	@SIGN='$(SIGN)' scripts/release.sh

clean: ## remove the venvs and all caches
	rm -rf .venv .venv-* build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage .coverage.* htmlcov
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Stamps: VENV/.LIST records that requirements/LIST.txt is installed in VENV.
# run.txt and dev.txt share a venv; their pins agree (scripts/lock.sh).
.venv/.dev: requirements/dev.txt pyproject.toml | .venv/$(SCRIPTS)/python
	$(call install,.venv,dev)
	$(call install_ferrule,.venv)
	@touch $@ .venv/.run  # dev.txt includes all of run.txt

.venv/.run: requirements/run.txt pyproject.toml | .venv/$(SCRIPTS)/python
	$(call install,.venv,run)
	$(call install_ferrule,.venv)
	@touch $@

.venv-core/.core: requirements/core.txt pyproject.toml | .venv-core/$(SCRIPTS)/python
	$(call install,.venv-core,core)
	$(call install_ferrule,.venv-core)
	@touch $@

.venv-bench/.bench: requirements/bench.txt pyproject.toml | .venv-bench/$(SCRIPTS)/python
	$(call install,.venv-bench,bench)
	$(call install_ferrule,.venv-bench)
	@touch $@

.venv-bench-dspy/.bench-dspy: requirements/bench-dspy.txt | .venv-bench-dspy/$(SCRIPTS)/python
	$(call install,.venv-bench-dspy,bench-dspy)
	@touch $@

# Without ferrule: the reference is read from the source, which is never imported.
.venv-docs/.docs: requirements/docs.txt | .venv-docs/$(SCRIPTS)/python
	$(call install,.venv-docs,docs)
	@touch $@

.venv-release/.release: requirements/release.txt | .venv-release/$(SCRIPTS)/python
	$(call install,.venv-release,release)
	@touch $@

.venv-audit/.audit: requirements/audit.txt | .venv-audit/$(SCRIPTS)/python
	$(call install,.venv-audit,audit)
	@touch $@

%/$(SCRIPTS)/python:
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "$(NO_PYTHON)" >&2; exit 1; }
	@echo "making $*"
	@"$(PYTHON)" -m venv $*

# Twice quiet: no advice of pip, errors only.
PIP_INSTALL := -m pip install -qq --disable-pip-version-check

# pip compiles with one core, for a third of its time. As in pip, a file that does not compile, such
# as a template, is no failure.
define install
@echo "installing requirements/$(2).txt into $(1)"
@$(1)/$(SCRIPTS)/python $(PIP_INSTALL) --no-compile --no-deps --require-hashes -r requirements/$(2).txt
@$(1)/$(SCRIPTS)/python -W ignore -m compileall -qq -j 0 $(1) || true
endef

# Without build isolation, because the list pins the build backend.
define install_ferrule
@$(1)/$(SCRIPTS)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
endef
