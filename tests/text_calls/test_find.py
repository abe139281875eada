"""Tool calls out of text: the forms models write them in, and texts that hold none (L10)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Tool, ToolCalls
from ferrule.errors import ToolCallError
from ferrule.text_calls.find import find
from ferrule.text_calls.offers import offers_of
from ferrule.values.conversation.exchange import Declarations


def declared(name: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": f"Does {name}.", "parameters": parameters},
    }


TEXT, WHOLE, LIST, YES = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "boolean"},
)
TOOLS = [
    declared("search", {"query": TEXT, "limit": WHOLE, "tags": LIST}, ["query"]),
    declared("weather.get_forecast", {"city": TEXT, "days": WHOLE, "detailed": YES}, ["city"]),
    declared("get_time", {}, []),
    declared("set_options", {"options": {"type": "object"}, "note": TEXT}, ["options"]),
]
Found = tuple[str, dict[str, Any]]
SEARCH: Found = ("search", {"query": "cats", "limit": 3})
PARIS: Found = ("weather.get_forecast", {"city": "Paris"})
TIME: Found = ("get_time", {})


def calls(text: str, tools: Any = TOOLS) -> list[Found]:
    return [(each.name, each.args) for each in ToolCalls.from_text(text, tools).tool_calls]


J_SEARCH = '{"name": "search", "arguments": {"query": "cats", "limit": 3}}'
J_PARIS = '{"name": "weather_get_forecast", "arguments": {"city": "Paris"}}'
ARGS = '{"query": "cats", "limit": 3}'
PIPE, BLOCK = "\uff5c", "\u2581"  # the signs in special tokens of one family


def deep(words: str) -> str:
    return f"<{PIPE}{words.replace(' ', BLOCK)}{PIPE}>"


FORMS: dict[str, tuple[str, list[Found]]] = {
    # JSON behind a tag or a token
    "hermes": (f"<tool_call>\n{J_SEARCH}\n</tool_call>", [SEARCH]),
    "hermes_two": (f"<tool_call>{J_SEARCH}</tool_call>\n<tool_call>{J_PARIS}</tool_call>", [SEARCH, PARIS]),
    "hermes_after_prose": (f"I will look it up.\n\n<tool_call>\n{J_SEARCH}\n</tool_call><|im_end|>", [SEARCH]),
    "hermes_unclosed": (f"<tool_call>\n{J_SEARCH}", [SEARCH]),
    "hermes_list": (f"<tool_call>[{J_SEARCH}, {J_PARIS}]</tool_call>", [SEARCH, PARIS]),
    "hermes_fenced": (f"<tool_call>\n```json\n{J_SEARCH}\n```\n</tool_call>", [SEARCH]),
    "hermes_no_arguments": ('<tool_call>{"name": "get_time"}</tool_call>', [TIME]),
    "hermes_null_arguments": ('<tool_call>{"name": "get_time", "arguments": null}</tool_call>', [TIME]),
    "function_arg": ('{"function_name": "search", "function_arg": {"query": "cats", "limit": 3}}', [SEARCH]),
    "hermes_flat": ('<tool_call>{"name": "search", "query": "cats", "limit": 3}</tool_call>', [SEARCH]),
    "hermes_text_arguments": (f"<tool_call>{json.dumps({'name': 'search', 'arguments': ARGS})}</tool_call>", [SEARCH]),
    "hermes_single_quotes": ("<tool_call>{'name': 'search', 'arguments': {'query': 'cats', 'limit': 3}}</tool_call>", [SEARCH]),
    "hermes_after_thought": (f"<think>I could search(query='dogs').</think>\n<tool_call>{J_SEARCH}</tool_call>", [SEARCH]),
    "thought_opened_by_the_prompt": (f"{J_PARIS} would be wrong\n</think>\n\n<tool_call>{J_SEARCH}</tool_call>", [SEARCH]),
    "call_in_a_cut_thought": (f"<think>so I need\n<tool_call>{J_SEARCH}</tool_call>", [SEARCH]),
    "granite": (f"<function_call> {J_SEARCH} <function_call> {J_PARIS} ", [SEARCH, PARIS]),
    "granite_3": (f"<|tool_call|>[{J_SEARCH}]", [SEARCH]),
    "phi": (f"<|tool_call|>[{J_SEARCH}]<|/tool_call|>", [SEARCH]),
    "functools": (f"functools[{J_SEARCH}]", [SEARCH]),
    "nemotron": (f"<TOOLCALL>[{J_SEARCH}]</TOOLCALL>", [SEARCH]),
    "jamba": (f"<tool_calls>[{J_SEARCH}]</tool_calls>", [SEARCH]),
    "minimax_m1": (f"<tool_calls>\n{J_SEARCH}\n{J_PARIS}\n</tool_calls>", [SEARCH, PARIS]),
    "apertus": (f'<|tools_prefix|>[{{"search": {ARGS}}}]<|tools_suffix|>', [SEARCH]),
    "internlm": ('<|action_start|><|plugin|>\n{"name": "search", "parameters": ' + ARGS + "}<|action_end|>", [SEARCH]),
    "cohere": ('<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "search", "parameters": ' + ARGS + "}]<|END_ACTION|>", [SEARCH]),
    "cohere_fence": ('Action: ```json\n[{"tool_name": "search", "parameters": ' + ARGS + "}]\n```", [SEARCH]),
    "inkling": (f'<|content_invoke_tool_json|>{{"name":"search","args":{ARGS}}}<|end_message|>', [SEARCH]),
    "glaive": ("<functioncall> {\"name\": \"search\", \"arguments\": '" + ARGS + "'}", [SEARCH]),
    "mistral": (f"[TOOL_CALLS] [{J_SEARCH}, {J_PARIS}]</s>", [SEARCH, PARIS]),
    "mistral_args": (f"[TOOL_CALLS]search[ARGS]{ARGS}[TOOL_CALLS]get_time[ARGS]{{}}</s>", [SEARCH, TIME]),
    "mistral_call_id": (f"[TOOL_CALLS]search[CALL_ID]abcDEF123[ARGS]{ARGS}", [SEARCH]),
    "mistral_name": (f"[TOOL_CALLS]search{ARGS}", [SEARCH]),
    "llama_python_tag": ('<|python_tag|>{"name": "search", "parameters": ' + ARGS + "}<|eom_id|>", [SEARCH]),
    "llama_two": (f'<|python_tag|>{{"name": "search", "parameters": {ARGS}}}; {{"name": "get_time", "parameters": {{}}}}', [SEARCH, TIME]),
    "llama_python": ('<|python_tag|>search.call(query="cats", limit=3)', [SEARCH]),
    # a name and JSON
    "glm": (f"search\n{ARGS}", [SEARCH]),
    "glm_two": (f'search\n{ARGS}\nweather_get_forecast\n{{"city": "Paris"}}', [SEARCH, PARIS]),
    "deepseek_v3": (
        deep("tool calls begin") + deep("tool call begin") + "function" + deep("tool sep") + f"search\n```json\n{ARGS}\n```"
        + deep("tool call end") + "\n" + deep("tool call begin") + "function" + deep("tool sep") + "get_time\n```json\n{}\n```"
        + deep("tool call end") + deep("tool calls end") + deep("end of sentence"),
        [SEARCH, TIME],
    ),
    "deepseek_v31": (
        deep("tool calls begin") + deep("tool call begin") + "search" + deep("tool sep") + ARGS + deep("tool call end")
        + deep("tool call begin") + "get_time" + deep("tool sep") + "{}" + deep("tool call end") + deep("tool calls end"),
        [SEARCH, TIME],
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>" + ARGS
        + "<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        [SEARCH, TIME],
    ),
    "harmony": (
        ("<|channel|>analysis<|message|>We need search(query='dogs')<|end|><|start|>assistant<|channel|>commentary to=functions.search "
        f"<|constrain|>json<|message|>{ARGS}<|call|>"),
        [SEARCH],
    ),
    "harmony_role": (f"<|start|>assistant to=functions.search<|channel|>commentary json<|message|>{ARGS}<|call|>", [SEARCH]),
    "harmony_without_tokens": (f"assistantcommentary to=functions.search json{ARGS}", [SEARCH]),
    "functionary_2": (f"<|from|>assistant\n<|recipient|>search\n<|content|>{ARGS}<|stop|>", [SEARCH]),
    "functionary_32": (f">>>search\n{ARGS}>>>get_time\n{{}}", [SEARCH, TIME]),
    "functionary_31": (f"<function=search>{ARGS}</function>", [SEARCH]),
    "react": (f"Thought: look it up\nAction: search\nAction Input: {ARGS}\nObservation: found\nAction: get_time\nAction Input: {{}}", [SEARCH]),
    "react_fence": (f"Action: search\nAction Input:\n```json\n{ARGS}\n```", [SEARCH]),
    "hunyuan": (f"<tool_calls>\n<tool_call>search\n```json\n{ARGS}\n```\n</tool_call>\n</tool_calls>", [SEARCH]),
    "gemma_escape": ("<start_function_call>call:search{query:<escape>cats<escape>,limit:3}<end_function_call>", [SEARCH]),
    "gemma_4": ('<|tool_call>call:search{query:<|"|>cats<|"|>,limit:3}<tool_call|><|tool_call>call:get_time{}<tool_call|>', [SEARCH, TIME]),
    # tags
    "qwen_coder": (
        "<tool_call>\n<function=search>\n<parameter=query>\ncats\n</parameter>\n<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>",
        [SEARCH],
    ),
    "qwen_coder_bare": ("<function=search><parameter=query>cats</parameter><parameter=limit>3</parameter></function>", [SEARCH]),
    "qwen_coder_unclosed": ("<function=search>\n<parameter=query>\ncats\n<parameter=limit>\n3\n</function>", [SEARCH]),
    "seed_oss": (
        "<seed:tool_call><function=search><parameter=query>cats</parameter><parameter=limit>3</parameter></function></seed:tool_call>",
        [SEARCH],
    ),
    "no_arguments_in_tags": ("<tool_call>\n<function=get_time>\n</function>\n</tool_call>", [TIME]),
    "invoke": (
        ('<function_calls>\n<invoke name="search">\n<parameter name="query">cats</parameter>\n<parameter name="limit">3</parameter>\n'
        "</invoke>\n</function_calls>"),
        [SEARCH],
    ),
    "invoke_old": (
        ("<function_calls>\n<invoke>\n<tool_name>search</tool_name>\n<parameters>\n<query>cats</query>\n<limit>3</limit>\n</parameters>\n"
        "</invoke>\n</function_calls>"),
        [SEARCH],
    ),
    "minimax_m2": (
        ('<minimax:tool_call>\n<invoke name="search">\n<parameter name="query">cats</parameter>\n<parameter name="limit">3</parameter>\n'
        '</invoke>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>'),
        [SEARCH, TIME],
    ),
    "minimax_m3": (
        (']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="search">]<]minimax[>[<query>cats]<]minimax[>[</query>]<]minimax[>[<limit>3'
        "]<]minimax[>[</limit>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>"),
        [SEARCH],
    ),
    "dsml": (
        (f'<{PIPE}DSML{PIPE}function_calls>\n<{PIPE}DSML{PIPE}invoke name="search">\n<{PIPE}DSML{PIPE}parameter name="query" string="true">cats'
        f'</{PIPE}DSML{PIPE}parameter>\n<{PIPE}DSML{PIPE}parameter name="limit" string="false">3</{PIPE}DSML{PIPE}parameter>\n'
        f"</{PIPE}DSML{PIPE}invoke>\n</{PIPE}DSML{PIPE}function_calls>"),
        [SEARCH],
    ),
    "step": (
        ('<steptml:invoke name="search"><steptml:parameter name="query">cats</steptml:parameter><steptml:parameter name="limit">3'
        "</steptml:parameter></steptml:invoke>"),
        [SEARCH],
    ),
    "kimi_k3": (
        ('<|open|>tools<|sep|><|open|>call tool="search" index="1"<|sep|><|open|>argument key="query" type="string"<|sep|>cats'
        '<|close|>argument<|sep|><|open|>argument key="limit" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|>"),
        [SEARCH],
    ),
    "named_tags": ("I search.\n<search>\n<query>cats</query>\n<limit>3</limit>\n</search>", [SEARCH]),
    "glm_45": (
        "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>cats</arg_value>\n<arg_key>limit</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        [SEARCH],
    ),
    "glm_45_alone": ("<tool_call>get_time\n</tool_call>", [TIME]),
    "longcat": (
        ("<longcat_tool_call>search\n<longcat_arg_key>query</longcat_arg_key>\n<longcat_arg_value>cats</longcat_arg_value>\n"
        "<longcat_arg_key>limit</longcat_arg_key><longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>"),
        [SEARCH],
    ),
    # Python
    "pythonic": ('[search(query="cats", limit=3), weather.get_forecast(city="Paris")]', [SEARCH, PARIS]),
    "pythonic_positional": ('[search("cats", 3)]', [SEARCH]),
    "pythonic_lines": ('[\n    search(query="cats", limit=3),\n    get_time(),\n]', [SEARCH, TIME]),
    "pythonic_quoted": ("['search(query=\"cats\", limit=3)', 'get_time()']", [SEARCH, TIME]),
    "pythonic_quoted_escaped": (r"['search(query=\'cats\', limit=3)']", [SEARCH]),
    "pythonic_quoted_together": ("['search(query=\"cats\", limit=3), get_time()']", [SEARCH, TIME]),
    "pythonic_bare_words": ("['search(query=cats, limit=3)']", [SEARCH]),
    "pythonic_escaped_underscores": (r"[weather.get\_forecast(city='Paris')]", [PARIS]),
    "pythonic_unclosed": ('[search(query="cats", limit=3)', [SEARCH]),
    "pythonic_after_prose": ("Here are the calls:\n\n[search(query='cats', limit=3)]\n\nThey find cats.", [SEARCH]),
    "pythonic_after_a_colon": ("Sure! The function call is: [search(query='cats', limit=3)]", [SEARCH]),
    "pythonic_in_quotes": ("\"[search(query='cats', limit=3)]\"", [SEARCH]),
    "pythonic_end_token": ("[search(query='cats', limit=3)]<|eot_id|>", [SEARCH]),
    "lfm": ("<|tool_call_start|>[search(query='cats', limit=3)]<|tool_call_end|>", [SEARCH]),
    "olmo": ("<function_calls>\nsearch(query='cats', limit=3)\nget_time()\n</function_calls>", [SEARCH, TIME]),
    "gorilla": ("<<function>>search(query='cats', limit=3)<<function>>get_time()", [SEARCH, TIME]),
    "whole_text": ("search(query='cats', limit=3)", [SEARCH]),
    "whole_text_no_arguments": ("get_time()", [TIME]),
    "raven": ("Call: search(query='cats', limit=3); get_time();<bot_end> \nThought: it finds cats", [SEARCH, TIME]),
    "own_line": ("I look it up.\n\nsearch(query='cats', limit=3)\n\nThen I answer.", [SEARCH]),
    "own_line_in_backticks": ("Calling:\n`search(query='cats', limit=3)`", [SEARCH]),
    "numbered_lines": ("1. search(query='cats', limit=3)\n2. weather.get_forecast(city='Paris')", [SEARCH, PARIS]),
    "tool_code": ("```tool_code\nprint(default_api.search(query='cats', limit=3))\n```", [SEARCH]),
    "tool_code_lines": ("Let me see.\n```tool_code\nfound = search(query='cats', limit=3)\nprint(found)\nprint(get_time())\n```", [SEARCH, TIME]),
    "tool_code_list": ("```tool_code\n[search(query='cats', limit=3)]\n```", [SEARCH]),
    "python_fence": ("```python\nsearch(query='cats', limit=3)\nget_time()\n```", [SEARCH, TIME]),
    "one_line_fence": ("```[search(query='cats', limit=3)]```", [SEARCH]),
    # JSON alone
    "llama_json": ('{"name": "search", "parameters": ' + ARGS + "}", [SEARCH]),
    "llama_typed": ('{"type": "function", "name": "search", "parameters": ' + ARGS + "}", [SEARCH]),
    "xlam": (f'{{"tool_calls": [{J_SEARCH}, {J_PARIS}]}}', [SEARCH, PARIS]),
    "json_list": (f"[{J_SEARCH}, {J_PARIS}]", [SEARCH, PARIS]),
    "json_keyed": (f'[{{"search": {ARGS}}}, {{"get_time": {{}}}}]', [SEARCH, TIME]),
    "json_lines": (f"{J_SEARCH}\n{J_PARIS}", [SEARCH, PARIS]),
    "json_fence": (f"I will call it:\n\n```json\n{J_SEARCH}\n```\nThat is all.", [SEARCH]),
    "json_in_prose": (f"Let me look that up. {J_SEARCH}\n\nThen we will see.", [SEARCH]),
    "openai": (
        json.dumps({"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": ARGS}}]}),
        [SEARCH],
    ),
    "openai_function_call": (json.dumps({"function_call": {"name": "search", "arguments": ARGS}}), [SEARCH]),
    "anthropic": (f'{{"type": "tool_use", "id": "t1", "name": "search", "input": {ARGS}}}', [SEARCH]),
    "langchain": ('```json\n{"action": "search", "action_input": ' + ARGS + "}\n```", [SEARCH]),
    "python_dict": ("{'name': 'search', 'arguments': {'query': 'cats', 'limit': 3}}", [SEARCH]),
    "json_beside_json": (f"{J_SEARCH}, {J_PARIS}; {J_SEARCH}", [SEARCH, PARIS, SEARCH]),
    "python_keyed": ("[{'search': {'query': 'cats', 'limit': 3}}, {'get_time': {}}]", [SEARCH, TIME]),
    "keyed_texts": (json.dumps([{"search": ARGS}]), [SEARCH]),
    "lists_beside_lists": ("[get_time()] [search(query='cats', limit=3)] [get_time()]", [TIME, SEARCH, TIME]),
    "qwen_agent": (f"\u273fFUNCTION\u273f: search\n\u273fARGS\u273f: {ARGS}", [SEARCH]),
    "llama_4": ("<|python_start|>[search(query='cats', limit=3)]<|python_end|>", [SEARCH]),
    "bold_label": ("**Function call:**\n\n```\nsearch(query='cats', limit=3)\n```\n\nThis finds cats.", [SEARCH]),
    "commas": ("search(query='cats', limit=3), get_time()", [SEARCH, TIME]),
    "fence_after_a_label": ("Here is the function call in JSON format:\n```json\n[" + J_SEARCH + "]\n```", [SEARCH]),
    "function_key": ('{"function": "search", "arguments": ' + ARGS + "}", [SEARCH]),
    "tool_uses": ('{"tool_uses": [{"recipient_name": "functions.search", "parameters": ' + ARGS + "}]}", [SEARCH]),
    "mistral_whole_call_as_arguments": (f"[TOOL_CALLS]search[ARGS]{J_SEARCH}", [SEARCH]),
    "mistral_argument_called_name": ('[TOOL_CALLS]search[ARGS]{"name": "Tom", "query": "cats"}', [("search", {"name": "Tom", "query": "cats"})]),
    "empty_list_key": (f'{{"tool_calls": {{"a": 1}}, {J_SEARCH[1:]}', [SEARCH]),
    "python_in_strings": ('["search(query=\'cats\', limit=3)", "get_time()"]', [SEARCH, TIME]),
    "python_spread": ("[search(**{'query': 'cats', 'limit': 3})]", [SEARCH]),
    "step_of_a_text_loop": (f'{{"next_thought": "Look.", "next_tool_name": "search", "next_tool_args": {ARGS}}}', [SEARCH]),
    "after_lines_of_another_message": (f"Hi.\nI look it up<|im_end|><tool_call>{J_SEARCH}</tool_call>", [SEARCH]),
    "harmony_after_lines": (
        ("<|channel|>commentary<|message|>Hi.\nI look it up<|end|><|start|>assistant<|channel|>commentary to=functions.search "
        f"<|constrain|>json<|message|>{ARGS}<|call|>"),
        [SEARCH],
    ),
    "sections_of_character_data": (
        "<function=search><parameter=query><![CDATA[a ]]]]><![CDATA[> b]]></parameter></function>",
        [("search", {"query": "a ]]> b"})],
    ),
    "text_between_sections_of_character_data": (
        "<function=search><parameter=query><![CDATA[a]]> and <![CDATA[b]]></parameter></function>",
        [("search", {"query": "a and b"})],
    ),
    "an_end_inside_character_data": (
        "<function=search><parameter=query><![CDATA[a ]]> b]]></parameter></function>",
        [("search", {"query": "a ]]> b"})],
    ),
    "python_namespace": ("default_api:search(query='cats', limit=3)", [SEARCH]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FORMS.values(), ids=FORMS.keys())
def test_a_call_is_found_in_every_form(text: str, expected: list[Found]) -> None:
    assert calls(text) == expected


QUIET: dict[str, str] = {
    "prose": "Cats are small carnivorous mammals (Felis catus) that people keep as pets.",
    "name_in_prose": "I could use the search tool, or get_time, but there is no need.",
    "call_in_a_sentence": "I would call search(query='cats') and then summarize what it gives.",
    "call_at_the_end_of_a_sentence": "The right thing is to run search(query='cats').",
    "call_in_inline_code": "You can run `search(query='cats')` to find them, if you like.",
    "list_in_a_sentence": "Something like [search(query='cats')] could be written there, or not.",
    "signature": "search(query: str, limit: int = 10)",
    "signature_of_names": "Tools:\n- search(query, limit)\n- get_time()\n- weather.get_forecast(city, days)",
    "signature_of_types": "search(query=str, limit=int)",
    "signature_of_itself": "search(query=query, limit=limit)",
    "ellipsis": "search(...)",
    "definition": "```python\ndef search(query, limit=10):\n    return index.find(query)[:limit]\n```",
    "program": "```python\nimport tools\n\nfor q in ['cats', 'dogs']:\n    print(search(query=q))\n```",
    "assignment": "```python\nresults = search(query='cats')\nprint(results)\n```",
    "example_fence": "For example:\n```python\nsearch(query='cats')\n```",
    "example_line": "Usage:\nsearch(query='cats')",
    "example_json": 'For instance:\n{"name": "search", "arguments": {"query": "cats"}}',
    "repl": ">>> search(query='cats')\n['a cat', 'another cat']",
    "result_of_a_call": "search(query='cats') -> ['a cat', 'another cat']",
    "result_with_equals": "search(query='cats', limit=3) = 2 results",
    "result_in_words": "search(query='cats') returned nothing.",
    "nested_call": "search(query=get_time())",
    "method": "client.search(query='cats')",
    "unknown_tool": "[find_all(query='cats')]",
    "unknown_json": '{"name": "find_all", "arguments": {"query": "cats"}}',
    "unknown_in_tags": '<tool_call>{"name": "find_all", "arguments": {"query": "cats"}}</tool_call>',
    "unknown_function_tag": "<function=find_all><parameter=query>cats</parameter></function>",
    "plain_json": '{"title": "Cats", "legs": 4, "friends": ["dog"]}',
    "json_with_a_name": '{"name": "Tom", "arguments": "he argued a lot"}',
    "record_named_like_a_tool": '{"name": "search", "price": 12}',
    "declaration": json.dumps(TOOLS[0]),
    "declarations": json.dumps(TOOLS, indent=1),
    "bare_declaration": json.dumps(TOOLS[0]["function"]),
    "declaration_as_arguments": json.dumps(
        {"name": "search", "arguments": TOOLS[0]["function"]["parameters"]},
    ),
    "properties_as_arguments": '{"name": "search", "parameters": {"query": {"type": "string"}, "limit": {"type": "integer"}}}',
    "schema": json.dumps(TOOLS[0]["function"]["parameters"]),
    "declarations_in_tags": f"<tools>\n{json.dumps(TOOLS[0])}\n</tools>",
    "result_json": '{"name": "search", "content": "Found 3 cats"}',
    "result_with_arguments": '{"name": "search", "arguments": {"query": "cats"}, "result": ["a cat"]}',
    "result_in_tags": f"<tool_response>\n{J_SEARCH}\n</tool_response>",
    "result_keyed": '{"search": {"hits": 3, "first": "a cat"}}',
    "result_behind_a_name": 'search\n{"hits": 3, "first": "a cat"}',
    "result_marked": '[TOOL_RESULTS] {"name": "search", "arguments": {"query": "cats"}} [/TOOL_RESULTS]',
    "observation": 'Observation: {"hits": 3}',
    "placeholder": '{"name": "search", "arguments": {"query": "..."}}',
    "placeholder_in_brackets": 'Answer as {"name": "search", "arguments": {"query": "<your query>"}}',
    "thought": f"<think>Maybe {J_SEARCH}\nor search(query='cats')\n</think>\nNo call is needed.",
    "cut_thought": "<think>\nI could write\n[search(query='cats')]",
    "analysis": "<|channel|>analysis<|message|>\nsearch(query='cats')\n<|end|><|start|>assistant<|channel|>final<|message|>Hello<|return|>",
    "tag_in_prose": "Put calls between <tool_call> and </tool_call> tags.",
    "tag_in_inline_code": f"Models write `<tool_call>{J_SEARCH}</tool_call>` for this.",
    "empty_tags": "<tool_call>\n</tool_call>",
    "link": "See [search](https://example.org/search(1)) for more.",
    "markdown_list": "- search: finds things\n- get_time: tells the time",
    "yaml": "search:\n  query: cats\n  limit: 3",
    "html_named_like_a_tool": "<search>cats</search> and <search><input></search>",
    "html": '<form action="search"><input name="query" value="cats"></form>',
    "lonely_name": "search",
    "quoted": f"> {J_SEARCH}",
    "quoted_python": "You wrote:\n> search(query='cats')\nIt is wrong.",
    "forbidden": f"Do not run this:\n{J_SEARCH}",
    "forbidden_in_a_fence": f"Never call it so:\n```json\n{J_SEARCH}\n```\nIt fails.",
    "listed": "Available functions:\n- search(query='cats', limit=3)\n- get_time()\n- search(query='dogs', limit=3)",
    "tags_in_a_sentence": "Write <search><query>cats</query></search> for it, or nothing.",
    "lonely_arguments": '{"query": "cats", "limit": 3}',
    "list_of_words": '["search", "get_time"]',
    "log": "2026-11-21 INFO search(query='cats') took 12 ms",
    "javascript": "const r = await search({query: 'cats'});",
    "shell": '$ search --query "cats" (limit 3)',
    "math": "Let f(x) = x^2 and search(x) its root.",
    "list_with_a_number_in_tags": f"<tool_call>[{J_SEARCH}, 5]</tool_call>",
    "list_with_a_text": f'[{J_SEARCH}, "and so on"]',
    "list_that_breaks_off": '[{"name": "search", oops',
    "number_in_tags": "<tool_call>5</tool_call>",
    "arguments_in_a_list": "[TOOL_CALLS]search[ARGS][1, 2]",
    "arguments_that_break_off": "search\n```json\n{query: cats and dogs\n```",
    "unknown_with_tokens_for_quotes": "call:find_all{a:<escape>x<escape>}",
    "python_in_a_string_and_a_number": "[\"search(query='cats')\", 5]",
    "repeated_keyword": "[search(query='a', query='b')]",
    "value_after_a_keyword": "[search(query='cats', 3)]",
    "no_comma": "[search(query=3 limit=3)]",
    "named_arguments_in_a_sentence": 'You may write `search` {"query": "cats"} or not.',
    "placeholder_in_tags": "Write <tool_call>search(query=<your query>)</tool_call> for that.",
    "ellipsis_in_tags": "<tool_call>search(query=...)</tool_call>",
    "signature_in_tags": "<tool_call>search(query: str, limit: int = 10)</tool_call>",
    "signatures_in_a_list": "[get_time(), search(query, limit), search(...)]",
    "code_that_computes": "```python\nfor each in found:\n    search(query=each + 1)\n```",
    "variables_in_code": "```python\nsearch(query=open('x'))\n```",
    "blank": " \n\t",
    "nothing": "",
}


@pytest.mark.parametrize("text", QUIET.values(), ids=QUIET.keys())
def test_a_text_without_a_call_gives_none(text: str) -> None:
    """Prose without a call gives no call; and the text is left as it is."""
    assert find(text, TOOLS) == ([], text)


VALUES: dict[str, tuple[str, Any]] = {
    "negative": ("-3", -3),
    "float": ("1.50", 1.5),
    "exponent": ("8.854e-12", 8.854e-12),
    "underscored": ("10_000", 10000),
    "sum": ("2 * 3 + 1", 7),
    "fraction": ("5/100", 0.05),
    "python_constants": ("[True, False, None]", [True, False, None]),
    "json_constants": ("[true, false, null]", [True, False, None]),
    "tuple": ("(1, 2)", [1, 2]),
    "dict": ("{'a': [1, {'b': 2}]}", {"a": [1, {"b": 2}]}),
    "numbered_dict": ("{1: 'x'}", {"1": "x"}),
    "comma": ("'San Francisco, CA'", "San Francisco, CA"),
    "parentheses": ("'f(x) = [1]'", "f(x) = [1]"),
    "other_quotes": ('"it\'s"', "it's"),
    "escaped_quotes": (r"'it\'s'", "it's"),
    "line_break": (r"'a\nb'", "a\nb"),
    "pattern": (r"'\d+'", r"\d+"),
    "raw": (r"r'\d+'", r"\d+"),
    "triple": ('"""a "b" c"""', 'a "b" c'),
    "joined": ("'a' 'b'", "ab"),
    "added": ("'a' + 'b'", "ab"),
    "bare": ("C_major", "C_major"),
    "bare_words": ("New York", "New York"),
    "subscript": ("data['sales']", "data['sales']"),
    "bare_list": ("[dogs, mice]", ["dogs", "mice"]),
    "signs": ("-(+3)", -3),
    "constant": ("true", True),
    "constants_in_an_expression": ("['a' + 'b', true, null]", ["ab", True, None]),
}


@pytest.mark.parametrize(("written", "meant"), VALUES.values(), ids=VALUES.keys())
def test_a_python_value_is_what_python_means(written: str, meant: Any) -> None:
    assert calls(f"[set_options(options={written}, note='x')]") == [
        ("set_options", {"options": meant, "note": "x"}),
    ]


REFUSED: dict[str, str] = {
    "call": "open('x')",
    "lambda": "lambda: 1",
    "comprehension": "[x for x in y]",
    "power": "9**9**9",
    "long_repetition": "'a' * 1000000000",
    "division_by_zero": "1/0",
    "attribute_of_a_call": "f().x",
    "format": "f'{x}'",
    "dict_in_a_dict": "{'a': 1, **{'b': 2}}",
    "endless": "a+" * 3000 + "a",
}


@pytest.mark.parametrize("written", REFUSED.values(), ids=REFUSED.keys())
def test_what_would_have_to_be_evaluated_is_no_value(written: str) -> None:
    """Never `eval`."""
    assert calls(f"[set_options(options={written})]") == []


REPAIRED: dict[str, tuple[str, tuple[str, ...]]] = {
    "none": (f"<tool_call>{J_SEARCH}</tool_call>", ()),
    "thought_that_a_word_ends": (
        f"<|think:start|>Maybe not.<|think:end|>\n<tool_call>{J_SEARCH}</tool_call>",
        (),
    ),
    "single_quotes": (
        "{'name': 'search', 'arguments': {'query': 'cats', 'limit': 3}}",
        ("single_quotes",),
    ),
    "trailing_comma": (
        '<tool_call>{"name": "search", "arguments": {"query": "cats", "limit": 3,}}</tool_call>',
        ("trailing_comma",),
    ),
    "extra_brace": (f"<tool_call>{J_SEARCH}}}</tool_call>", ("extra_closing_brace",)),
    "lost_brace_of_a_whole_text": (J_SEARCH[:-1], ("missing_closing_brace",)),
    "escaped_quotes": (J_SEARCH.replace('"', '\\"'), ("doubly_encoded",)),
    "lost_brace": (f"<tool_call>{J_SEARCH[:-1]}\n</tool_call>", ("missing_closing_brace",)),
    "python": ("[search(query='cats', limit=3)]", ()),
    "unquoted": ("[search(query=cats, limit=3)]", ("unquoted_strings",)),
    "open_list": ("[search(query='cats', limit=3)", ("missing_closing_bracket",)),
    "open_keys": (
        '<tool_call>{name: "search", arguments: {query: "cats", limit: 3}}</tool_call>',
        ("unquoted_keys",),
    ),
}


@pytest.mark.parametrize(("text", "repairs"), REPAIRED.values(), ids=REPAIRED.keys())
def test_the_repairs_a_call_needed_are_recorded(text: str, repairs: tuple[str, ...]) -> None:
    [call] = ToolCalls.from_text(text, TOOLS).tool_calls
    assert ((call.name, call.args), call.repairs) == (SEARCH, repairs)


@pytest.mark.parametrize(
    "text",
    [r"[set\_options(options='x')]", r"[set_options(op\_tions='x', options='x')]"],
    ids=["tool", "argument"],
)
def test_escaped_underscores_are_a_repair(text: str) -> None:
    [call] = ToolCalls.from_text(text, TOOLS).tool_calls
    assert (call.name, call.repairs) == ("set_options", ("escapes",))


def test_a_repair_is_recorded_once() -> None:
    [call] = ToolCalls.from_text("[search(query=cats, tags=dogs)]", TOOLS).tool_calls
    assert (call.args, call.repairs) == ({"query": "cats", "tags": "dogs"}, ("unquoted_strings",))


BROKEN: dict[str, str] = {
    "hermes": '<tool_call>{"name": "search", "arguments": {"query": cats and dogs}}</tool_call>',
    "cut": '<tool_call>{"name": "search", "arguments": {"query": "cats and do',
    "mistral": '[TOOL_CALLS]search[ARGS]{"query": cats and dogs}',
    "tag": "<function=search>{'query': cats and dogs}</function>",
    "text_arguments": '<tool_call>{"name": "search", "arguments": "cats"}</tool_call>',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_marked_call_that_cannot_be_read_is_a_fault_of_its_tool(text: str) -> None:
    """Never `{}`, never silence."""
    [call] = ToolCalls.from_text(text, TOOLS).tool_calls
    assert call.fault is not None
    assert (call.name, call.args, call.fault.code) == ("search", {}, "invalid_tool_call_arguments")


UNREADABLE = '{"name": "search", "arguments": {"query": "a "b" c"}}'


@pytest.mark.parametrize(
    "text",
    [UNREADABLE, f"I look.\n\n{UNREADABLE}", f"```json\n{UNREADABLE}\n```", f"Let me look:\n```json\n[{UNREADABLE}]\n```\n\nOne moment.",
     UNREADABLE.replace("{", "{\n  ").replace("}", "\n}"), '{"next_tool_name": "search", "next_tool_args": {"query": C:\\dir}}',
     UNREADABLE.replace('"name"', '"next_thought": "It\'s here.", "next_tool_name"').replace("arguments", "next_tool_args")],
)  # fmt: skip
def test_a_call_in_json_that_cannot_be_read_is_a_fault_also_without_an_announcement(
    text: str,
) -> None:
    """An unescaped quote is a frequent mistake of small models.

    In silence, an agent took the text as its answer.
    """
    [call] = ToolCalls.from_text(text, TOOLS).tool_calls
    assert call.fault is not None
    assert (call.name, call.args, call.fault.code) == ("search", {}, "invalid_tool_call_arguments")


@pytest.mark.parametrize(
    "form",
    [
        "[{}, {}, {}]",
        "{}\n{}\n{}",
        "```json\n{},\n{},\n{}\n```",
        "Now:\n```json\n[{},\n{},\n{}]\n```\nSo.",
    ],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_calls_beside_one_in_json_that_cannot_be_read_do_not_run_without_it(
    form: str, at: int
) -> None:
    good = [J_SEARCH, J_SEARCH.replace("cats", "dogs")]
    [found] = ToolCalls.from_text(
        form.replace("{}", "%s") % (*good[:at], UNREADABLE, *good[at:]),
        TOOLS,
    ).tool_calls
    assert (found.name, found.args, found.fault is None) == ("search", {}, False)


@pytest.mark.parametrize(
    "text",
    [f"For example:\n{UNREADABLE}", f"Write `{UNREADABLE}` to search.", f"> {UNREADABLE}", '{"name": "search", "arguments": {"query": ...}}',
     'Answer in this form:\n{"name": "search", "arguments": {"query": <the query>}}', UNREADABLE.replace("search", "seek"),
     '{"name": "search", "description": {"query": "a "b" c"}}'],
)  # fmt: skip
def test_json_that_cannot_be_read_and_only_shows_a_call_is_none(text: str) -> None:
    assert ToolCalls.from_text(text, TOOLS).tool_calls == []


def test_what_is_said_beside_the_calls_is_kept() -> None:
    """An adapter can hand on the prose."""
    text = f"Let me look.\n<tool_calls><tool_call>\n{J_SEARCH}\n</tool_call></tool_calls>\nOne moment.<|im_end|>"
    found, rest = find(text, TOOLS)
    assert [each["name"] for each in found] == ["search"]
    assert rest == "Let me look.\nOne moment."


RESTS = {
    "hermes": f"<tool_call>{J_SEARCH}</tool_call>",
    "list": "[search(query='cats')]",
    "fence": f"```json\n{J_SEARCH}\n```",
    "line": "search(query='cats')",
    "tags": "<tool_call><function=search><parameter=query>cats</parameter></function></tool_call>",
    "mistral": f"[TOOL_CALLS][{J_SEARCH}]</s>",
    "kimi": FORMS["kimi"][0],
    "deepseek": FORMS["deepseek_v3"][0],
}


@pytest.mark.parametrize("text", RESTS.values(), ids=RESTS.keys())
def test_nothing_is_left_of_a_text_that_is_all_calls(text: str) -> None:
    assert find(text, TOOLS)[1] == ""


def test_markup_of_the_texts_own_is_left_in_the_rest() -> None:
    text = f"Use <b>bold</b> text.</div>\n<tool_call>{J_SEARCH}</tool_call>\n<answer>42</answer>"
    assert find(text, TOOLS)[1] == "Use <b>bold</b> text.</div>\n<answer>42</answer>"


def test_the_prose_before_a_call_is_the_rest() -> None:
    for text in RESTS.values():
        assert find(f"One moment, please.\n\n{text}", TOOLS)[1] == "One moment, please."


def lookup(query: str, limit: int = 3) -> str:
    """Look something up."""
    return query


def test_tools_come_as_tools_declarations_or_bare_functions() -> None:
    text = "[lookup('cats', limit=2)]"
    tool = Tool(lookup)
    for tools in (
        [tool],
        (tool,),
        [tool.declaration],
        [tool.declaration["function"]],
        Declarations([tool.declaration]),
        tool,
        iter([tool]),
    ):
        assert calls(text, tools) == [("lookup", {"query": "cats", "limit": 2})]
    assert calls(text, []) == []


def test_a_tool_that_is_only_a_name_has_no_order_of_arguments() -> None:
    class Named:
        name = "lookup"

    assert calls("[lookup(query='cats')]", [Named()]) == [("lookup", {"query": "cats"})]
    assert calls("[lookup('cats')]", [Named()]) == []


NAMES = {
    "exact": "a.b_c",
    "underscored": "a_b_c",
    "hyphened": "a-b-c",
    "prefixed": "functions.a_b_c",
    "upper": "A.B_C",
}


@pytest.mark.parametrize("written", NAMES.values(), ids=NAMES.keys())
def test_a_call_carries_the_name_that_was_offered(written: str) -> None:
    """Dotted and underscored forms match."""
    assert calls(
        f'<tool_call>{{"name": "{written}", "arguments": {{}}}}</tool_call>',
        [declared("a.b_c", {}, [])],
    ) == [("a.b_c", {})]


def test_two_tools_of_one_spelling_are_only_meant_by_their_own_names() -> None:
    both = [declared("a.b", {}, []), declared("a_b", {}, [])]
    assert [calls(f"[{name}()]", both) for name in ("a.b", "a_b", "a-b")] == [
        [("a.b", {})],
        [("a_b", {})],
        [],
    ]


def test_a_name_with_blanks_is_found() -> None:
    tools = [declared("Get Weather", {"city": TEXT}, ["city"])]
    for text in (
        '[Get Weather(city="Paris")]',
        'Get Weather(city="Paris")',
        '{"name": "Get Weather", "arguments": {"city": "Paris"}}',
    ):
        assert calls(text, tools) == [("Get Weather", {"city": "Paris"})]


def test_ids_and_intentions_are_kept() -> None:
    text = '{"id": "c7", "name": "search", "intention": "to know", "arguments": {"query": "cats"}}'
    [call] = ToolCalls.from_text(text, TOOLS).tool_calls
    assert (call.id, call.intention) == ("c7", "to know")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("7", "7"), ('"c7"', "c7"), ("true", None), ('""', None)],
)
def test_an_id_is_text_that_names_a_call(written: str, meant: str | None) -> None:
    [call] = ToolCalls.from_text(
        f'{{"id": {written}, "name": "search", "arguments": {{"query": "cats"}}}}',
        TOOLS,
    ).tool_calls
    assert call.id == meant


@pytest.mark.parametrize(
    ("schema", "read"),
    [
        ({"type": ["integer", "null"]}, [1, {"a": 1}, None, "oops"]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, {"a": 1}, None, "oops"]),
        ({"enum": ["1", "2"]}, ["1", '{"a": 1}', "null", "oops"]),
        ({}, ["1", {"a": 1}, "null", "oops"]),
        (True, ["1", {"a": 1}, "null", "oops"]),
    ],
    ids=["types", "branches", "texts", "anything", "true"],
)
def test_text_in_tags_is_json_only_where_the_schema_or_its_brackets_say_so(
    schema: Any,
    read: list[Any],
) -> None:
    for written, meant in zip(("1", '{"a": 1}', "null", "oops"), read, strict=True):
        text = f"<function=set_options><parameter=options>{written}</parameter></function>"
        assert calls(text, [declared("set_options", {"options": schema}, [])]) == [
            ("set_options", {"options": meant}),
        ]


def test_text_in_tags_becomes_what_the_schema_says() -> None:
    """A value between tags has no type of its own; one in JSON has, and stays."""
    text = '<function=search><parameter=query>42</parameter><parameter=limit>7</parameter><parameter=tags>["a"]</parameter></function>'
    assert calls(text) == [("search", {"query": "42", "limit": 7, "tags": ["a"]})]
    assert calls(
        '<tool_call>{"name": "search", "arguments": {"query": 42, "limit": "7"}}</tool_call>',
    ) == [("search", {"query": 42, "limit": "7"})]


def test_text_in_tags_keeps_its_lines_and_markup() -> None:
    text = "<function=search>\n<parameter=query>\n  if a < b:\n    <function=x>\n\n</parameter>\n</function>"
    assert calls(text) == [("search", {"query": "  if a < b:\n    <function=x>\n"})]


def test_tags_inside_of_an_argument_are_text() -> None:
    for query in (
        "a </tool_call> b",
        "</think> b",
        "<tool_call>",
        "[TOOL_CALLS]",
        "```json",
        "<|im_end|>",
        "search(query='x')",
    ):
        text = json.dumps({"name": "search", "arguments": {"query": query}})
        assert calls(f"<tool_call>\n{text}\n</tool_call>") == [("search", {"query": query})]


def test_a_text_that_was_cut_in_its_arguments_is_not_completed() -> None:
    assert calls('{"name": "search", "arguments": {"query": "cats"') == []
    assert calls('{"name": "search", "arguments": {"query": "ca') == []


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    find(text, TOOLS)


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "search", "get_time", "(", ")", "[", "]", "{", "}", '"name"', '"arguments"', ":", ",", "'", '"',
     "query", "=", "cats", "3", "\n", " ", "```", "python", "tool_code", "<function=search>", "<parameter=query>", "</parameter>", "\\", "**", "-",
     '<invoke name="search">', "<arg_key>query</arg_key>", "<arg_value>", "<think>", "</think>", "<tools>", "Action:", "to=functions.search", "call:",
     "<escape>", "<|message|>", "0" * 30, "1e999", "#", "/*", "Observation:", "[ARGS]", "f'{", "\x00", "\ud800"],
)  # fmt: skip


@given(st.lists(PIECES, max_size=40).map("".join))
def test_pieces_of_calls_in_any_order_are_read_without_an_error(text: str) -> None:
    found, _ = find(text, TOOLS)
    assert {each["name"] for each in found} <= {tool["function"]["name"] for tool in TOOLS}


ARGUMENTS = st.fixed_dictionaries(
    {"query": st.text()},
    optional={"limit": st.integers(), "tags": st.lists(st.text(), max_size=3)},
)


@pytest.mark.parametrize("value", ["]<]minimax[>[", "a ]<]minimax[>[ b"])
def test_the_namespace_of_a_model_family_stays_in_arguments(value: str) -> None:
    assert calls(f"[search(query={value!r})]") == [("search", {"query": value})]
    assert calls(
        f'<tool_call>{{"name": "search", "arguments": {{"query": "{value}"}}}}</tool_call>',
    ) == [("search", {"query": value})]


@given(ARGUMENTS)
def test_any_arguments_survive_json_behind_a_tag(args: dict[str, Any]) -> None:
    for ascii_only in (True, False):
        text = json.dumps({"name": "search", "arguments": args}, ensure_ascii=ascii_only)
        assert calls(f"<tool_call>\n{text}\n</tool_call>") == [("search", args)]


@given(ARGUMENTS)
def test_any_arguments_survive_python(args: dict[str, Any]) -> None:
    written = ", ".join(f"{key}={value!r}" for key, value in args.items())
    assert calls(f"[search({written})]") == [("search", args)]


def test_a_long_program_does_not_hide_the_call_behind_it() -> None:
    program = (
        "function f(a) { if (a) { return [a[0], {b: g(a)}]; } else { g({'x': y}) } }\n\\frac{a}{b}\n"
        * 300
    )
    assert calls(f"{program}\n<tool_call>{J_SEARCH}</tool_call>") == [SEARCH]


HOSTILE = {
    "tags": "<tool_call>",
    "brackets": "[",
    "braces": "{",
    "open_names": '{"name": "search", "arguments": {',
    "open_lists": '{"name": [1, 2, ',
    "open_strings": "{'name': \"",
    "fences": "```json\n{",
    "callees": "search(",
    "lists": "[search(query=[",
    "expressions": "[search(query=1+",
    "thoughts": "<think>",
    "declarations": "<tools>",
    "functions": "<function=search><parameter=query>",
    "keys": "<tool_call>search<arg_key>query</arg_key><arg_value>",
    "children": "<invoke><tool_name>search</tool_name><parameters><query>",
    "escapes": "<start_function_call>call:search{query:<escape>",
    "quotes": "['search(",
    "names": "search\n{",
    "blanks": "[ \n",
    "words": "a.b" * 10 + "(",
    "mistral": "[TOOL_CALLS]search[ARGS]{",
    "channels": "<|channel|>analysis",
    "actions": "Action: search\nAction Input: {",
    "comments": "[search(#\n",
    "cut_comments": "<tool_call>#",
    "comment_lines": "<tool_call>```tool_code\n#:</parameter>",
    "commented_arguments": "search(#",
    "empty_objects": "}f'{",
    "named_objects": "}[search\n{",
    "parentheses": "(",
    "open_comments": '/*{"name": "search", "arguments":  ',
    "nested_fences": "```tool_code\n",
}


@pytest.mark.parametrize("size", [1_000, 20_000, pytest.param(200_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_long_text_of_one_piece_ends(piece: str, size: int) -> None:
    """What is read twice is bounded (`Effort`): without that, these texts take many minutes."""
    find(piece * (size // len(piece)), TOOLS)


def test_the_names_of_declarations_are_worked_out_once() -> None:
    offered = Declarations(TOOLS)
    assert offers_of(offered) is offers_of(offered)


def test_a_declaration_that_was_changed_is_read_anew() -> None:
    mine = [declared("find", {"query": TEXT}, ["query"])]
    assert calls('[find(query="a")]', mine) == [("find", {"query": "a"})]
    mine[0]["function"]["name"] = "seek"
    assert calls('[seek(query="a")]', mine) == [("seek", {"query": "a"})]


@pytest.mark.parametrize(
    "junk",
    [lookup, 5, None, {}, {"function": 5}, ""],
    ids=["function", "number", "none", "empty", "odd", "text"],
)
def test_what_declares_no_tool_is_named(junk: Any) -> None:
    with pytest.raises(ToolCallError, match="Pass tools or their declarations") as raised:
        ToolCalls.from_text("lookup()", [junk])
    assert raised.value.code == "invalid_tool_spec"


@pytest.mark.parametrize(
    "written",
    ["NaN", "1e999", "[" * 250 + "]" * 250],
    ids=["nan", "infinity", "deep"],
)
def test_arguments_that_no_json_can_carry_are_a_fault(written: str) -> None:
    """They would come back as others."""
    [call] = ToolCalls.from_text(
        f'<tool_call>{{"name": "set_options", "arguments": {{"options": {{"a": {written}}}}}}}</tool_call>',
        TOOLS,
    ).tool_calls
    assert call.args == {}
    assert call.fault is not None
    assert call.fault.code == "invalid_tool_call_arguments"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('search(query="cats", \\\n    limit=3)', [SEARCH]),
        ('search( \\\n query= \\\n "cats", limit=3)', [SEARCH]),
        ('get_time() \\\nsearch(query="cats", limit=3)', [TIME, SEARCH]),
        (
            'search(query="cats", limit=3); \\\r\nweather.get_forecast(city="Paris")',
            [SEARCH, PARIS],
        ),
        ('[get_time(), \\\n search(query="cats", limit=3)]', [TIME, SEARCH]),
        ('<tool_call>get_time() \\\n search(query="cats", limit=3)</tool_call>', [TIME, SEARCH]),
    ],
)
def test_a_continued_line_loses_no_call(text: str, found: list[Found]) -> None:
    assert calls(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("search(query=query)", [("search", {"query": "query"})]),
        ("<tool_call>search(query=query)</tool_call>", [("search", {"query": "query"})]),
        (
            "<tool_call>search(query=query, limit=limit)</tool_call>",
            [("search", {"query": "query", "limit": "limit"})],
        ),
        ("[search(query=query), get_time()]", [("search", {"query": "query"}), TIME]),
        (
            "Let me see:\n[search(query=query), weather.get_forecast(city='Paris')]",
            [("search", {"query": "query"}), PARIS],
        ),
    ],
)
def test_a_variable_of_the_parameters_name_is_text_that_the_tool_checks(
    text: str,
    found: list[Found],
) -> None:
    assert calls(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "It has this form:\nsearch(query=query, limit=limit)\nand finds pages.",
        "Signature:\n```python\nsearch(query=query, limit=limit)\n```\nIt finds pages.",
        "I know these:\n[search(query=query)]\nand no others.",
        "search(query=str)",
        "[search(query=query, limit=limit)]",
        "I have `search` (query, limit) and can use it.",
    ],
)
def test_a_signature_in_prose_calls_nothing(text: str) -> None:
    assert calls(text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('**weather.get\\_forecast**(city="Paris")', [PARIS]),
        ('`search`(query="cats", limit=3)', [SEARCH]),
        ('(search(query="cats", limit=3), weather.get_forecast(city="Paris"))', [SEARCH, PARIS]),
        ('<tool_call>(search(query="cats", limit=3), get_time())</tool_call>', [SEARCH, TIME]),
        ('return [search(query="cats", limit=3), get_time()]', [SEARCH, TIME]),
        ('return search(query="cats", limit=3)', [SEARCH]),
        ('```python\nreturn [search(query="cats", limit=3), get_time()]\n```', [SEARCH, TIME]),
        ('<tool_call>return [search(query="cats", limit=3)]</tool_call>', [SEARCH]),
    ],
)
def test_names_in_markdown_tuples_and_returned_lists_are_calls_and_leave_no_text(
    text: str,
    found: list[Found],
) -> None:
    read = ToolCalls.from_text(text, TOOLS)
    assert calls(text) == found
    assert find(text, TOOLS)[1] == ""
    assert not any(each.fault for each in read.tool_calls)


@pytest.mark.parametrize(
    "written",
    [
        'new String("a")',
        "new HashMap<String, Integer>()",
        'new ArrayList<>(Arrays.asList("a", "b"))',
        "new int[]{1, 2}",
    ],
)
def test_a_constructor_as_in_java_is_text(written: str) -> None:
    assert calls(f"search(query={written}, limit=3)") == [
        ("search", {"query": written, "limit": 3}),
    ]


@pytest.mark.parametrize(
    "call",
    ['search(query="cats")', f"```json\n{J_SEARCH}\n```", J_SEARCH, '[search(query="cats")]'],
)
@pytest.mark.parametrize(
    "lead",
    [
        "Here is an example of how to use it:",
        "No tool fits. If you still want to use it:",
        "However, if you still want to use the function, you can:\n",
    ],
)
def test_what_the_reader_might_do_announces_no_call(lead: str, call: str) -> None:
    assert calls(f"{lead}\n{call}") == []


def test_parameters_names_in_quotes_are_values() -> None:
    assert calls('Now:\n[search(query="query")]\nas you said.') == [("search", {"query": "query"})]


@pytest.mark.parametrize("lead", ["To summarize, the calls:", "So the calls are:", "In short:"])
@pytest.mark.parametrize(
    "again",
    [
        '[search(query="cats", limit=3)]',
        f"```json\n[{J_SEARCH}]\n```",
        f"<tool_call>{J_SEARCH}</tool_call>",
    ],
)
def test_an_answer_that_is_restated_counts_once(lead: str, again: str) -> None:
    assert calls(f'[search(query="cats", limit=3)]\n\n{lead}\n{again}') == [SEARCH]


@pytest.mark.parametrize(
    "text",
    [
        '[search(query="cats", limit=3), search(query="cats", limit=3)]',
        f"<tool_call>{J_SEARCH}</tool_call>\n<tool_call>{J_SEARCH}</tool_call>",
        f"<tool_call>{J_SEARCH}</tool_call>\nAnd once more, to be sure:\n<tool_call>{J_SEARCH}</tool_call>",
    ],
)
def test_a_deliberate_repeat_stays(text: str) -> None:
    assert calls(text) == [SEARCH, SEARCH]
