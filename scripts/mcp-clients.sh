#!/usr/bin/env bash
# Drive `ferrule serve` by eleven foreign MCP clients, each installed into a cache. Arguments name clients: fastmcp-4 dspy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
.venv/bin/python conformance/clients/run.py "$@"
