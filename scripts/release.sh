#!/usr/bin/env bash
# Build a wheel and an sdist into dist/, check them, run the demo from the wheel in an empty venv, write the bill of materials. SIGN=KEY signs all with gpg.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/release-notes.sh  # first: a release without notes ends before anything is built
make --quiet .venv-release/.release
rm -rf dist build/release
.venv-release/bin/python -m hatchling build
.venv-release/bin/twine check --strict dist/*
.venv-release/bin/python -m venv build/release
build/release/bin/python -m pip install -qq --disable-pip-version-check "$(ls dist/*.whl)[cli,embedded,mcp,ui]"
rm -f build/release/lib/python*/site-packages/ferrule-*.dist-info/direct_url.json  # else the bill of materials names this folder
(cd build && release/bin/python -m ferrule.cli.demo > release/demo.txt && tail -n 5 release/demo.txt)
.venv-release/bin/cyclonedx-py environment build/release/bin/python --output-reproducible --output-file dist/ferrule.cdx.json
if [ -n "${SIGN:-}" ]; then
    for file in dist/*; do gpg --batch --yes --local-user "$SIGN" --armor --detach-sign "$file"; done
else
    echo "Not signed: no SIGN=KEY was given. The workflow signs with sigstore."
fi
cp build/NOTES.md dist
ls dist
