# The tasks of a checkout: `make help` lists them. They need make and Python 3.11 or newer.

# The first that is new enough is used; `make PYTHON=/path/to/python test` names another.
CANDIDATES = python3 python3.14 python3.13 python3.12 python3.11 python
NEW_ENOUGH = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in $(CANDIDATES); do "$$python" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$python" && break; done)
NO_PYTHON = ferrule needs Python 3.11 or newer with its venv module; tried: $(or $(PYTHON),$(CANDIDATES)). Say 'make PYTHON=/path/to/python ...'.

VENV  := .venv
CORE  := .venv-core
BENCH := .venv-bench
SITE  := .venv-docs
RELEASE := .venv-release
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN   := $(VENV)/$(SCRIPTS)
# Twice quiet: no advice of pip, errors only.
PIP_INSTALL := -m pip install -qq --disable-pip-version-check
# Tests start processes of their own, so two workers use a small machine fully. `make PYTEST_ARGS= test` uses one.
PYTEST_ARGS := -n 2
# The tests of types, where the checkout has them.
TYPING_TESTS = $(wildcard tests/typing)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test matrix lint check check-core kill-test mutants fuzz real-servers bench constrained walk ui-test pg-test pg-kills pg-bench page-bench screenshots conformance mcp-clients front-ends traces docs docs-serve \
	pictures coverage format lock release release-notes clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.run ## an agent at work in the terminal, no API key needed
	@$(BIN)/python -m ferrule.cli.demo

test: $(VENV)/.dev ## all tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

matrix: $(VENV)/.dev ## all tests on every Python of this machine from 3.11 on, each in a venv of its own
	@$(BIN)/python tests/matrix.py $(PYTHONS) -- $(PYTEST_ARGS)

lint: $(VENV)/.dev ## the checks that read the code: format, lint, types
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(if $(TYPING_TESTS),$(BIN)/mypy $(TYPING_TESTS))

check: lint ## all checks before a commit: format, lint, types, tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

CORE_FILES = tests/typing/check_types.py $(shell find src/ferrule -name '*.py' | grep -v -e /mcp_bridge/ -e /telemetry/ -e /front_ends/ -e /runs/store/dbos.py -e /cli/ -e /web/ -e /store/postgres/ -e /vocabulary.py)

check-core: $(CORE)/.core ## all checks in a venv without any extra; the types of what needs an extra are left to `make check`
	$(CORE)/$(SCRIPTS)/ruff format --check --quiet .
	$(CORE)/$(SCRIPTS)/ruff check --quiet .
	@$(CORE)/$(SCRIPTS)/basedpyright --pythonpath $(CORE)/$(SCRIPTS)/python $(CORE_FILES)
	$(CORE)/$(SCRIPTS)/mypy $(TYPING_TESTS)
	@FERRULE_CORE_TEST=1 $(CORE)/$(SCRIPTS)/python -m pytest $(PYTEST_ARGS)

kill-test: $(VENV)/.dev ## kill, interrupt and race agents, and count the effects of their tools
	@PYTHONPATH=tests $(BIN)/python -m killing

mutants: $(VENV)/.dev ## break the library in seven ways, and show that the kill test catches each
	@$(BIN)/python tests/killing/mutants.py

FUZZED := tests/text_calls/test_nothing_lost.py tests/tools/arguments/test_like_jsonschema.py

fuzz: $(VENV)/.dev ## random inputs to everything that parses foreign text, its time as inputs grow (SPAN=600: ten minutes each), then long property tests
	@PYTHONPATH=tests $(BIN)/python -m fuzzing --seconds $(or $(SPAN),120)
	@PYTHONPATH=tests $(BIN)/python -m fuzzing --seconds $(or $(SPAN),120) --doubling
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --hypothesis-profile=long $(FUZZED)

real-servers: $(VENV)/.dev ## the tests with real MCP and model servers; unlike in `make test`, a failed install is an error
	@FERRULE_REAL_SERVERS=1 $(BIN)/python -m pytest $(PYTEST_ARGS) tests/integration/test_mcp_real_servers.py tests/integration/test_mcp_modes.py tests/integration/test_model_servers.py

bench: $(BENCH)/.bench $(BENCH)-dspy/.bench-dspy ## speed beside other libraries, in venvs of their own (ONLY=steps,http PEERS=smolagents,dspy: these)
	@$(BENCH)/$(SCRIPTS)/python benchmarks/run.py

constrained: $(VENV)/.dev ## constrained calls: how many are valid, with every kind of argument, and what the masks cost
	@PYTHONPATH=tests $(BIN)/python -m constrained
	@PYTHONPATH=tests $(BIN)/python -m constrained_models

walk: $(VENV)/.dev ## count the files of ferrule that one call passes through
	@$(BIN)/python benchmarks/walk.py --list

ui-test: $(VENV)/.dev ## `ferrule ui` in the system's Chromium, which must be there: two people, keys, no script, lost connections, axe-core (apt-get install chromium; for Ctrl-F xvfb xdotool)
	@FERRULE_UI_TEST=1 $(BIN)/python -m pytest $(PYTEST_ARGS) tests/web/test_browser.py

pg-test: $(VENV)/.dev ## the tests with a real Postgres, which they start; unlike in `make test`, none is an error (apt-get install postgresql pgbouncer)
	@FERRULE_PG_TEST=1 $(BIN)/python -m pytest $(PYTEST_ARGS) tests/runs/store tests/integration/test_workers.py

pg-kills: $(VENV)/.dev ## the kill test on Postgres; outages, cuts, a pooler, an upgrade; kill 1,000 workers, then one every two seconds in 20 rounds of 200 runs (POINTS=60 KILLS=60 ROUNDS=1: fewer)
	@PYTHONPATH=tests $(BIN)/python -m killing --postgres --kills $(or $(POINTS),560)
	@PYTHONPATH=tests $(BIN)/python -m killing.troubles
	@PYTHONPATH=tests $(BIN)/python -m killing.workers --kills $(or $(KILLS),1000) --rounds $(or $(ROUNDS),20)

pg-bench: $(VENV)/.dev ## what a run kept in Postgres costs, beside a bare INSERT and SQLite; then workers
	@PYTHONPATH=tests $(BIN)/python benchmarks/postgres.py
	@PYTHONPATH=tests $(BIN)/python benchmarks/workers.py

page-bench: $(VENV)/.dev ## `ferrule ui` as ratios to what it stands on (FIGURE="runs entry": these)
	@PYTHONPATH=tests $(BIN)/python -m page_speed $(FIGURE)

screenshots: $(VENV)/.dev ## a picture of every page of `ferrule ui`, light, dark and narrow, in build/screenshots
	@PYTHONPATH=tests $(BIN)/python -m page_pictures

conformance: $(VENV)/.dev ## the suites of the Model Context Protocol, both sides; installs node and the suite into a cache
	@$(BIN)/python conformance/run.py

mcp-clients: $(VENV)/.dev ## drive `ferrule serve` by eleven foreign MCP clients; installs each into a cache (CLIENTS="fastmcp-4 dspy": these)
	@$(BIN)/python conformance/clients/run.py $(CLIENTS)

front-ends: $(VENV)/.dev ## drive a chat service by the clients of AG-UI and Vercel's AI SDK; installs them into a cache (CLIENTS="ag-ui ai6": these)
	@$(BIN)/python conformance/front_ends/run.py $(CLIENTS)

traces: $(VENV)/.dev ## convert a run's spans by Arize's package for GenAI spans, from npm
	@PYTHONPATH=tests $(BIN)/python conformance/traces/run.py

docs: $(VENV)/.dev $(SITE)/.docs ## run every block of the pages, then build the site into build/site; dead links and missing references fail
	@$(BIN)/python -m pytest --quiet $(PYTEST_ARGS) tests/docs
	@$(SITE)/$(SCRIPTS)/python site/build.py

docs-serve: $(SITE)/.docs ## build the site and show it on http://127.0.0.1:8000 (PORT=9000: elsewhere)
	@$(SITE)/$(SCRIPTS)/python site/build.py --serve $(or $(PORT),8000)

pictures: ## draw docs/images/*.dot as SVG again (apt-get install graphviz)
	@for dot in docs/images/*.dot; do dot -Tsvg "$$dot" | sed -e 's/<!--.*-->//' -e '/^<!-- Generated/,/-->$$/d' > "$${dot%.dot}.svg"; done

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
	$(COMPILE) pyproject.toml requirements/dev.in --extra cli --extra dbos --extra langchain --extra local --extra mcp --extra otel --extra prices --extra ui -o requirements/dev.txt
	$(COMPILE) pyproject.toml requirements/core.in -c requirements/dev.txt -o requirements/core.txt
	$(COMPILE) pyproject.toml requirements/run.in --extra cli --extra mcp --extra ui -c requirements/dev.txt -o requirements/run.txt
	@mkdir -p build && sed -n '/^[a-zA-Z]/{/^websockets=/d;s/ \\$$//;p}' requirements/dev.txt > build/pins.txt  # openai-agents needs an older websockets
	$(COMPILE) pyproject.toml requirements/bench.in --extra cli --extra mcp --extra otel -c build/pins.txt -o requirements/bench.txt
	grep '^pydantic' build/pins.txt > build/pydantic.txt
	$(COMPILE) requirements/bench-dspy.in -c build/pydantic.txt -o requirements/bench-dspy.txt
	$(COMPILE) requirements/docs.in -c requirements/dev.txt -o requirements/docs.txt
	$(COMPILE) requirements/release.in -c requirements/dev.txt -o requirements/release.txt

release: release-notes $(RELEASE)/.release ## build a wheel and an sdist into dist/, check them, run the demo from the wheel in an empty venv, write the bill of materials (SIGN=KEY: sign all with gpg)
	@rm -rf dist build/release
	@$(RELEASE)/$(SCRIPTS)/python -m hatchling build
	@$(RELEASE)/$(SCRIPTS)/twine check --strict dist/*
	@"$(PYTHON)" -m venv build/release
	@build/release/$(SCRIPTS)/python $(PIP_INSTALL) "$$(ls dist/*.whl)[cli,mcp,ui]"
	@rm -f build/release/lib/python*/site-packages/ferrule-*.dist-info/direct_url.json  # else the bill of materials names this folder
	@cd build && release/$(SCRIPTS)/python -m ferrule.cli.demo > release/demo.txt && tail -n 5 release/demo.txt
	@$(RELEASE)/$(SCRIPTS)/cyclonedx-py environment build/release/$(SCRIPTS)/python --output-reproducible --output-file dist/ferrule.cdx.json
	@$(if $(SIGN),for file in dist/*; do gpg --batch --yes --local-user '$(SIGN)' --armor --detach-sign "$$file" || exit 1; done,echo "Not signed: no SIGN=KEY was given. The workflow signs with sigstore.")
	@cp build/NOTES.md dist
	@ls dist

# Comes first: a release without notes ends before anything is built.
release-notes: VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/ferrule/__init__.py)
release-notes:
	@mkdir -p build
	@awk -v heading='## [$(VERSION)]' 'index($$0, "## [") == 1 { inside = index($$0, heading) == 1; next } inside' CHANGELOG.md > build/NOTES.md
	@grep -q '[^[:space:]]' build/NOTES.md || { echo "A release takes its notes from the section [$(VERSION)] of CHANGELOG.md, and there is none, or it is empty. \
	Rename [Unreleased] to '[$(VERSION)] - $$(date +%Y-%m-%d)', put a new empty '## [Unreleased]' above it, and run make release again." >&2; exit 1; }

clean: ## remove the venvs and all caches
	rm -rf $(VENV) $(CORE) $(BENCH) $(BENCH)-dspy $(SITE) $(RELEASE) .venv-3.* build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage .coverage.* htmlcov
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Stamps: each records that its list is installed.
# run.txt and dev.txt share a venv; their pins agree (see `lock`).
$(VENV)/$(SCRIPTS)/python:
	$(call make_venv,$(VENV))

$(VENV)/.run: requirements/run.txt pyproject.toml | $(VENV)/$(SCRIPTS)/python
	$(call install,$(VENV),requirements/run.txt)

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(VENV)/$(SCRIPTS)/python
	$(call install,$(VENV),requirements/dev.txt)
	@touch $(VENV)/.run  # dev.txt holds all of run.txt

$(CORE)/$(SCRIPTS)/python:
	$(call make_venv,$(CORE))

$(CORE)/.core: requirements/core.txt pyproject.toml | $(CORE)/$(SCRIPTS)/python
	$(call install,$(CORE),requirements/core.txt)

$(BENCH)/$(SCRIPTS)/python:
	$(call make_venv,$(BENCH))

$(BENCH)-dspy/$(SCRIPTS)/python:
	$(call make_venv,$(BENCH)-dspy)

$(BENCH)/.bench: requirements/bench.txt pyproject.toml | $(BENCH)/$(SCRIPTS)/python
	$(call install,$(BENCH),requirements/bench.txt)

$(BENCH)-dspy/.bench-dspy: requirements/bench-dspy.txt | $(BENCH)-dspy/$(SCRIPTS)/python
	@echo "installing $< into $(BENCH)-dspy"
	@$(BENCH)-dspy/$(SCRIPTS)/python $(PIP_INSTALL) --require-hashes -r $<
	@touch $@

$(SITE)/$(SCRIPTS)/python:
	$(call make_venv,$(SITE))

# Only the list: the reference is read from the source, which is never imported.
$(SITE)/.docs: requirements/docs.txt | $(SITE)/$(SCRIPTS)/python
	@echo "installing $< into $(SITE)"
	@$(SITE)/$(SCRIPTS)/python $(PIP_INSTALL) --require-hashes -r $<
	@touch $@

$(RELEASE)/$(SCRIPTS)/python:
	$(call make_venv,$(RELEASE))

$(RELEASE)/.release: requirements/release.txt | $(RELEASE)/$(SCRIPTS)/python
	@echo "installing $< into $(RELEASE)"
	@$(RELEASE)/$(SCRIPTS)/python $(PIP_INSTALL) --require-hashes -r $<
	@touch $@

define make_venv
@"$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "$(NO_PYTHON)" >&2; exit 1; }
@echo "making $(1)"
@"$(PYTHON)" -m venv $(1)
endef

# Without build isolation, because the list pins the build backend.
define install
@echo "installing $(2) into $(1)"
@$(1)/$(SCRIPTS)/python $(PIP_INSTALL) --require-hashes -r $(2)
@$(1)/$(SCRIPTS)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
@touch $@
endef
