#!/usr/bin/env bash
# Injected calls under rules about where values come from, on the tasks of AgentDojo, in a venv of its own (some minutes).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ ! -e .venv-injection/.done ]; then
  python3 -m venv .venv-injection
  .venv-injection/bin/python -m pip install -qq --disable-pip-version-check agentdojo==0.1.35 agent-framework-core .
  touch .venv-injection/.done
fi
.venv-injection/bin/python benchmarks/injection.py "$@"
