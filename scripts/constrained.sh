#!/usr/bin/env bash
# Constrained calls: how many are valid, with every kind of argument, and what the masks cost.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
PYTHONPATH=tests .venv/bin/python -m constrained
PYTHONPATH=tests .venv/bin/python -m constrained_models
