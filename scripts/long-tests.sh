#!/usr/bin/env bash
# The tests that `make test` leaves out because they take minutes: many workers, restarts, thousands of runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
FERRULE_LONG_TEST=1 .venv/bin/python -m pytest ${PYTEST_ARGS:--n 2} -m long
