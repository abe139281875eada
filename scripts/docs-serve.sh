#!/usr/bin/env bash
# Build the site and show it on http://127.0.0.1:8000. The argument is another port.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv-docs/.docs
.venv-docs/bin/python site/build.py --serve "${1:-8000}"
