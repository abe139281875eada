#!/usr/bin/env bash
# The tests that `make test` leaves out because they take minutes (many workers, restarts, thousands of runs), and more examples of each property.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
FERRULE_LONG_TEST=1 .venv/bin/python -m pytest ${PYTEST_ARGS:--n 2} -m long
# Properties, each with more examples than `make test` draws.
.venv/bin/python -m pytest ${PYTEST_ARGS:--n 2} -m hypothesis --hypothesis-profile=many
