#!/usr/bin/env bash
# The kill test on Postgres: outages, cuts, a pooler, an upgrade; kill 1,000 workers, then one every two seconds in 20 rounds of 200 runs. POINTS=60 KILLS=60 ROUNDS=1: fewer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
export PYTHONPATH=tests
.venv/bin/python -m killing --postgres --kills "${POINTS:-800}"
.venv/bin/python -m killing.troubles
.venv/bin/python -m killing.workers --kills "${KILLS:-1000}" --rounds "${ROUNDS:-20}"
