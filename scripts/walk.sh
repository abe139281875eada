#!/usr/bin/env bash
# Count the files of ferrule that one call passes through.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
.venv/bin/python benchmarks/walk.py --list
