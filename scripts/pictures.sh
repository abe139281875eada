#!/usr/bin/env bash
# Draw docs/images/*.dot as SVG again (apt-get install graphviz).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for dot in docs/images/*.dot; do
    dot -Tsvg "$dot" | sed -e 's/<!--.*-->//' -e '/^<!-- Generated/,/-->$/d' > "${dot%.dot}.svg"
done
