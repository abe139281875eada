#!/usr/bin/env bash
# Update every pin in requirements/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv/.dev
# No annotations and no header: they would name paths and the index of this machine.
# left-out.txt holds what no list installs.
compile() { .venv/bin/uv pip compile --override requirements/left-out.txt --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate "$@"; }
extras() { for extra in "$@"; do printf -- '--extra %s ' "$extra"; done; }
# dev.txt comes first: the others follow its pins, so that tests, demo and benchmarks use one version of a package.
compile pyproject.toml requirements/dev.in $(extras cli code dbos embedded langchain local mcp otel prices skills ui) -o requirements/dev.txt
compile pyproject.toml requirements/core.in -c requirements/dev.txt -o requirements/core.txt
compile pyproject.toml requirements/run.in $(extras cli embedded mcp ui) -c requirements/dev.txt -o requirements/run.txt
mkdir -p build
sed -n '/^[a-zA-Z]/{/^websockets=/d;s/ \\$//;p}' requirements/dev.txt > build/pins.txt  # openai-agents needs an older websockets
compile pyproject.toml requirements/bench.in $(extras cli mcp otel) -c build/pins.txt -o requirements/bench.txt
grep '^pydantic' build/pins.txt > build/pydantic.txt
compile requirements/bench-dspy.in -c build/pydantic.txt -o requirements/bench-dspy.txt
compile requirements/docs.in -c requirements/dev.txt -o requirements/docs.txt
compile requirements/release.in -c requirements/dev.txt -o requirements/release.txt
compile requirements/audit.in -o requirements/audit.txt
