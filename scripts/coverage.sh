#!/usr/bin/env bash
# Branch coverage of the package by all tests, also the long ones, by file. PYTEST_ARGS="-n 2" are the defaults of pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
.venv/bin/coverage erase
status=0
FERRULE_LONG_TEST=1 .venv/bin/coverage run -m pytest --quiet ${PYTEST_ARGS:--n 2} || status=$?
.venv/bin/coverage combine --quiet
.venv/bin/coverage report
exit $status
