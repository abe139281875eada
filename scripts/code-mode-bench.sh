#!/usr/bin/env bash
# Requests, tokens and time of ten tasks, with native calls and with code that calls tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
.venv/bin/python benchmarks/code_mode.py
