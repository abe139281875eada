#!/usr/bin/env bash
# All checks in a venv without any extra; the types of what needs an extra are left to `make check`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv-core/.core
files=$(find src/ferrule -name '*.py' | grep -v -e /mcp_bridge/ -e /telemetry/ -e /front_ends/ -e /runs/store/dbos.py -e /cli/ -e /web/ -e /store/postgres/ -e /vocabulary.py)
.venv-core/bin/ruff format --check --quiet .
.venv-core/bin/ruff check --quiet .
.venv-core/bin/basedpyright --pythonpath .venv-core/bin/python tests/typing/check_types.py $files
.venv-core/bin/mypy tests/typing
FERRULE_CORE_TEST=1 .venv-core/bin/python -m pytest ${PYTEST_ARGS:--n 2}
