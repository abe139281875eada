#!/usr/bin/env bash
# The tests with real MCP and model servers; unlike in scripts/long-tests.sh, a failed install is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
FERRULE_REAL_SERVERS=1 FERRULE_LONG_TEST=1 .venv/bin/python -m pytest ${PYTEST_ARGS:--n 2} \
    tests/integration/test_mcp_real_servers.py tests/integration/test_mcp_modes.py tests/integration/test_model_servers.py
