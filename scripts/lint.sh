#!/usr/bin/env bash
# The checks that read the code: format, lint, types.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
bin=.venv/bin
if [ -d .venv/Scripts ]; then bin=.venv/Scripts; fi  # Windows
$bin/ruff format --check --quiet .
$bin/ruff check --quiet .
$bin/basedpyright --pythonpath $bin/python
if [ -d tests/typing ]; then $bin/mypy tests/typing; fi
