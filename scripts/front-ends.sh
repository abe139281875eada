#!/usr/bin/env bash
# Drive a chat service by the clients of AG-UI and Vercel's AI SDK, installed into a cache. Arguments name clients: ag-ui ai6.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
.venv/bin/python conformance/front_ends/run.py "$@"
