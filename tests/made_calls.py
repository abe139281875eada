"""Hypothesis strategies of tool calls: sound ones, and ones with a fault."""

from __future__ import annotations

from hypothesis import strategies as st

from ferrule.values.calls.call import CallFault, ToolCall

texts = st.text(st.characters(exclude_categories=()), max_size=8)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(texts, json_values, max_size=3)
names = texts.filter(str.strip)
faults = st.builds(
    CallFault,
    st.sampled_from(["invalid_tool_call", "invalid_tool_call_arguments"]),
    texts,
    texts | st.just("{}") | st.just('{"a":1}'),
)
sound = st.builds(
    ToolCall,
    name=names,
    args=arguments,
    id=st.none() | names,
    intention=st.none() | names,
    repairs=st.lists(names, max_size=2).map(tuple),
)
faulty = st.builds(
    ToolCall,
    name=texts,
    id=st.none() | names,
    fault=faults,
    intention=st.none() | names,
)
calls = sound | faulty
