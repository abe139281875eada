#!/usr/bin/env bash
# Write the section of CHANGELOG.md for the version in src/ferrule/__init__.py to build/NOTES.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/ferrule/__init__.py)
mkdir -p build
awk -v heading="## [$version]" \
    'index($0, "## [") == 1 { inside = index($0, heading) == 1; next } inside' CHANGELOG.md > build/NOTES.md
if ! grep -q '[^[:space:]]' build/NOTES.md; then
    echo "A release takes its notes from the section [$version] of CHANGELOG.md, and there is none, or it is empty." \
        "Name its first section '[$version] - $(date +%Y-%m-%d)', and run make release again." >&2
    exit 1
fi
