"""Schemas of every kind that JSONSchemaBench has: what a grammar admits, the schema admits, or a
loss says otherwise.
"""

from collections import Counter

import pytest
from bench_schemas import SCHEMAS, judged

pytest.importorskip("llguidance", reason="needs the extra: pip install 'ferrule[local]'")

LEVELS = {
    "glaive": {"exact": 39, "rewritten": 11},
    "kubernetes": {"exact": 22, "rewritten": 28},
    "snowplow": {"exact": 26, "rewritten": 19, "partial": 5},
    "github": {"exact": 19, "rewritten": 6, "partial": 25},
}


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", LEVELS)
def test_no_schema_of_two_hundred_is_widened_in_silence(kind, every):
    """Each gets its level; random answers are drawn for every fifth, or in the long tests for each."""
    found = {}
    schemas = [(name, schema) for name, schema in SCHEMAS.items() if name.startswith(kind)]
    for number, (name, schema) in enumerate(schemas):
        walks = 2 if number % every == 0 else 0
        found[name] = judged(schema, walks)
    assert {name: faults for name, (_, faults) in found.items() if faults} == {}
    assert Counter(level for level, _ in found.values()) == LEVELS[kind]
