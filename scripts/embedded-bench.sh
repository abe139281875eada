#!/usr/bin/env bash
# How often the embedded model calls right, by BFCL v4. Argument: the leaderboard's folder bfcl_eval/data.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
.venv/bin/python benchmarks/embedded.py "$@"
