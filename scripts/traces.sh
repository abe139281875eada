#!/usr/bin/env bash
# Convert a run's spans by Arize's package for GenAI spans, from npm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
PYTHONPATH=tests .venv/bin/python conformance/traces/run.py
