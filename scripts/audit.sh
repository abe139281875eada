#!/usr/bin/env bash
# Ask the index for known advisories about our pins, and about the oldest versions that pyproject.toml allows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --quiet .venv-audit/.audit
audit() { .venv-audit/bin/pip-audit --progress-spinner off --disable-pip "$@"; }
# The lists of bench are left out: they hold what other libraries need, and no user gets them.
for list in core run dev docs release audit; do
    echo "requirements/$list.txt"
    audit --strict --require-hashes --requirement "requirements/$list.txt"
done
mkdir -p build
# A floor is what an installation may get that has an older version already.
.venv-audit/bin/python - > build/floors.txt <<'PYTHON'
import re
import tomllib

from packaging.version import Version

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
needed = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
floors = {}
for line in needed:
    name, version = re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", line).groups()
    floors[name] = min(version, floors.get(name, version), key=Version)
print("\n".join(f"{name}=={version}" for name, version in floors.items()))
PYTHON
echo "the floors of pyproject.toml"
audit --no-deps --requirement build/floors.txt
