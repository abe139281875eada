#!/usr/bin/env bash
# The page of `ferrule ui` as ratios to what it is built on. Arguments name figures: "runs entry".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
PYTHONPATH=tests .venv/bin/python -m page_speed "$@"
