#!/usr/bin/env bash
# A picture of every page of `ferrule ui`, light, dark and narrow, in build/screenshots.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
PYTHONPATH=tests .venv/bin/python -m page_pictures
