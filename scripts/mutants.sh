#!/usr/bin/env bash
# Break the library in seven ways, and show that the kill test catches each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
.venv/bin/python tests/killing/mutants.py
