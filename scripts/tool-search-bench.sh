#!/usr/bin/env bash
# How often a search of 1,000 tools finds the right one, by words and by meaning.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
.venv/bin/python benchmarks/tool_search.py "$@"
