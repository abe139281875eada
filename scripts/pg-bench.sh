#!/usr/bin/env bash
# What a run kept in Postgres costs, compared with a bare INSERT and SQLite; then workers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
PYTHONPATH=tests .venv/bin/python benchmarks/postgres.py
PYTHONPATH=tests .venv/bin/python benchmarks/workers.py
