#!/usr/bin/env bash
# Run the 237 core tests of DSPy's own suite through the facade; installs DSPy and its tests into a cache. --plain, --real, a folder with its tests/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
.venv/bin/python conformance/dspy/run.py "$@"
