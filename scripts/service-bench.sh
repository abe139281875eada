#!/usr/bin/env bash
# Chats at once, in one service of each library (ONLY=ours,relay CHATS=100 RATES=0,60 KEEPS=1 choose a part), then 2,000 extractions.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv-bench/.bench
.venv-bench/bin/python benchmarks/service.py
.venv-bench/bin/python benchmarks/extractions.py
