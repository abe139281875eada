#!/usr/bin/env bash
# Format the code, and apply the safe fixes of ruff.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
.venv/bin/ruff format .
.venv/bin/ruff check --fix .
