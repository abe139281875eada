#!/usr/bin/env bash
# All tests on every Python of this machine from 3.11 on, each in a venv of its own. Arguments name the Pythons.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
.venv/bin/python tests/matrix.py "$@" -- ${PYTEST_ARGS:--n 2}
