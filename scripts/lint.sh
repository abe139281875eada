#!/usr/bin/env bash
# The checks that read the code: format, lint, types.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
bin=.venv/bin
if [ -d .venv/Scripts ]; then bin=.venv/Scripts; fi  # Windows
$bin/ruff format --check --quiet .
$bin/ruff check --quiet .
# Both read all of the code, with one core each.
$bin/mypy tests/typing & mypy=$!
$bin/basedpyright --pythonpath $bin/python
wait $mypy
