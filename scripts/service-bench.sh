#!/usr/bin/env bash
# Chats at once, in one service of each library. Variables choose: ONLY=ours,relay CHATS=100 RATES=0,60 KEEPS=1
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv-bench/.bench
.venv-bench/bin/python benchmarks/service.py
