# ruff: noqa: RUF001  tokens of models have such bars
"""The forms in which models write calls, as data.

A row is a template of one call, as the model's chat template writes it. Tags and tokens stand for
themselves; the words in braces are slots:

- `{calls}`: calls in any of the forms without tags: JSON, a list, Python, a name and its arguments;
- `{name}`: the tool's name; `{id}`: an id, which is not read; `{json}`: the arguments as JSON;
- `{arguments}`: the arguments one by one, each as `argument` writes it, with `{key}`, `{value}` and
  perhaps `{type}`, the value's type;
- `{python}`: the call as Python writes it;
- `{strings}`: JSON in which a token stands in place of quotation marks; `{line}`: a line of text.

The place of a tag in a template is its meaning: before the first slot it announces calls, between
two slots it separates them, after the last it ends the call. `argument` is shared by all rows: the
tag with which an argument begins says how it goes on. Spellings of tags (prefixes, suffixes, bars,
case) are not rows: `marks` reads them by one rule.
"""

from __future__ import annotations

from typing import NamedTuple


class TextForm(NamedTuple):
    """How models of one family write a call."""

    name: str
    models: str
    source: str
    """Where the form is documented: a parser of vLLM or SGLang, a template, a paper."""
    call: str
    argument: str = ""


_PARAMETER = "<parameter={key}>{value}</parameter>"
_NAMED_PARAMETER = '<parameter name="{key}">{value}</parameter>'
_PAIR = "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"

DIALECTS = (
    # Tags around calls in any form without tags.
    TextForm("Hermes", "Hermes, Qwen 2.5 and 3, EXAONE, Ernie, RWKV", "vLLM `hermes`",
            "<tool_call>{calls}</tool_call>"),
    TextForm("Jamba", "Jamba, MiniMax M1, Hunyuan A13B", "vLLM `jamba`, `minimax`",
            "<tool_calls>{calls}</tool_calls>"),
    TextForm("Granite", "Granite 20B, Glaive", "vLLM `granite-20b-fc`",
            "<function_call>{calls}</function_call>"),
    TextForm("Olmo", "Olmo 3", "vLLM `olmo3`", "<function_calls>{calls}</function_calls>"),
    TextForm("Nemotron", "Nemotron Nano 2", "vLLM `nemotron`", "<TOOLCALL>{calls}</TOOLCALL>"),
    TextForm("Mistral list", "Mistral before 2025", "mistral-common", "[TOOL_CALLS]{calls}"),
    TextForm("Llama Python tag", "Llama 3.1 to 3.3", "Llama's model card",
            "<|python_tag|>{calls}<|eom_id|>"),
    TextForm("Llama 4", "Llama 4", "Llama's model card",
            "<|python_start|>{calls}<|python_end|>"),
    TextForm("LFM", "LFM 2", "vLLM `lfm2`", "<|tool_call_start|>{calls}<|tool_call_end|>"),
    TextForm("InternLM", "InternLM 2, Intern-S1", "vLLM `internlm`, `intern_s1`",
            "<|action_start|><|plugin|>{calls}<|action_end|>"),
    TextForm("Command", "Command R and A", "vLLM `cohere_command`",
            "<|START_ACTION|>{calls}<|END_ACTION|>"),
    TextForm("Apertus", "Apertus", "vLLM `apertus`", "<|tools_prefix|>{calls}<|tools_suffix|>"),
    TextForm("Inkling", "Inkling", "vLLM `inkling`",
            "<|content_invoke_tool_json|>{calls}<|end_message|>"),
    TextForm("Gorilla", "Gorilla OpenFunctions", "its model card", "<<function>>{calls}"),
    TextForm("Tool code", "Gemini and Gemma before 4", "Gemini's code execution",
            "<tool_code>{calls}</tool_code>"),
    TextForm("dots", "dots.llm", "vLLM `dots`",
            "<dots_function_call>{calls}</dots_function_call>"),
    TextForm("HyperCLOVA X 14B", "HyperCLOVA X SEED Think 14B", "its vLLM plugin",
            "-> tool/function_call\n{calls}"),
    TextForm("functools", "Phi-4-mini, Firefunction", "vLLM `phi4_mini_json`",
            "functools[{calls}]"),
    # A name and JSON.
    TextForm("Mistral", "Mistral, Devstral, Magistral since 2025", "mistral-common",
            "[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]{json}"),
    TextForm("Kimi K2", "Kimi K2", "vLLM `kimi_k2`",
            "<|tool_calls_section_begin|><|tool_call_begin|>{name}<|tool_call_argument_begin|>"
            "{json}<|tool_call_end|><|tool_calls_section_end|>"),
    TextForm("Kimi K2 singular", "Kimi K2", "vLLM `kimi_k2`",
            "<|tool_call_section_begin|>{calls}<|tool_call_section_end|>"),
    TextForm("DeepSeek V3", "DeepSeek V3, R1 and V3.1", "vLLM `deepseek_v3`, `deepseek_v31`",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json}"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    TextForm("Solar Open", "Solar Open 100B", "Upstage's plugin for vLLM",
            "<|tool_calls|><|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{json}"
            "<|tool_call:end|>"),
    TextForm("PLaMo", "PLaMo 3", "vLLM `plamo3`",
            "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
            "<|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
            "<|plamo:begin_tool_arguments:plamo|><|plamo:msg|>{json}"
            "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
            "<|plamo:end_tool_requests:plamo|>"),
    TextForm("Functionary 2", "Functionary 2", "its templates",
            "<|recipient|>{name}<|content|>{json}<|stop|>"),
    TextForm("GLM 5.3 Flash", "GLM-5.3-Flash", "SGLang `glm53_flash`",
            "<tool_call>{name}>{json}", "<arg_key>{key}={value}</arg_value>"),
    TextForm("Gemma 3", "FunctionGemma", "vLLM `functiongemma`",
            "<start_function_call>call:{name}{strings}<end_function_call>"),
    TextForm("Gemma 4", "Gemma 4", "vLLM `gemma4`", "<|tool_call>call:{name}{strings}<tool_call|>"),
    # Arguments in tags.
    TextForm("Qwen3-Coder", "Qwen3-Coder and 3.5, Seed-OSS, Step 3.5, MiMo", "vLLM `qwen3_coder`",
            "<function={name}>{arguments}</function>", _PARAMETER),
    TextForm("MiniCPM", "MiniCPM 5", "vLLM `minicpm5xml`",
            '<function name="{name}">{arguments}</function>',
            '<param name="{key}">{value}</param>'),
    TextForm("Claude", "Claude, MiniMax M2 and M3, DeepSeek V3.2 and V4, GigaChat 3.5, Step 3, "
            "Glimmer", "vLLM `minimax_m2`, `deepseek_v4`, `gigachat35`",
            '<invoke name="{name}">{arguments}</invoke>', _NAMED_PARAMETER),
    TextForm("Claude 2", "Claude 2", "Anthropic's guide",
            "<invoke><tool_name>{name}</tool_name><parameters>{arguments}</parameters></invoke>",
            "<{key}>{value}</{key}>"),
    TextForm("Name tags", "small models", "observed",
            "<tool_call><name>{name}</name><arguments>{arguments}</arguments></tool_call>",
            '<arg name="{key}">{value}</arg>'),
    TextForm("GLM", "GLM 4.5 to 5, Hy v4, LongCat, HyperCLOVA X, Ling 3",
            "vLLM `glm45`, `hy_v4`, `longcat`, `hyperclovax_seed_think`",
            "<tool_call>{name}{arguments}</tool_call>", _PAIR),
    TextForm("IQuest", "IQuest Coder 1 and 2, IQuest Q1", "vLLM `iquest_coder_v2`",
            "<iquestcoder_tool_call>{name}{arguments}</iquestcoder_tool_call>", _PAIR),
    TextForm("K2-Horizon", "K2-Horizon", "vLLM `k2_horizon`",
            "<ifm|tool_calls><ifm|tool_call>{name}{arguments}</ifm|tool_call></ifm|tool_calls>",
            "<arg_key>{key}</arg_key><arg_type>{type}</arg_type><arg_value>{value}</arg_value>"),
    TextForm("Solar Open 2", "Solar Open 2", "vLLM `solar_open2`",
            "<|tool_call:start|>{name}{arguments}<|tool_call:end|>",
            "<|tool_arg:start|>{key}<|tool_arg:value|>{value}<|tool_arg:end|>"),
    TextForm("Kimi K3", "Kimi K3", "SGLang `kimik3`",
            '<|open|>tools<|sep|><|open|>call tool="{name}"<|sep|>{arguments}<|close|>call<|sep|>'
            "<|close|>tools<|sep|>",
            '<|open|>argument key="{key}"<|sep|>{value}<|close|>argument<|sep|>'),
    TextForm("CWM", "Code World Model", "vLLM `cwm`", "<tool: function>{name} {line}</tool>"),
)  # fmt: skip
"""The forms that a tag or a token announces, in no order."""

UNMARKED = (
    TextForm("JSON", "Llama 3, xLAM, gpt-4o, small models", "vLLM `llama3_json`, `xlam`",
            "{calls}"),
    TextForm("Python", "Llama 3.2 and 4, ToolACE, Mixtral", "vLLM `pythonic`", "[{python}]"),
    TextForm("Python lines", "Granite 4, NexusRaven", "vLLM `granite_pythonic`", "{python}"),
    TextForm("Fence of JSON", "RWKV, small models", "vLLM `rwkv`", "```json\n{calls}\n```"),
    TextForm("Fence of code", "Gemini, Gemma", "Gemini's code execution",
            "```tool_code\n{python}\n```"),
    TextForm("Name and JSON", "GLM-4", "its template", "{name}\n{json}"),
    TextForm("Functionary 3.2", "Functionary 3.2", "its templates", ">>>{name}\n{json}"),
    TextForm("ReAct", "many", "the ReAct paper", "Action: {name}\nAction Input: {json}"),
    TextForm("Qwen-Agent", "Qwen 2", "Qwen-Agent", "✿FUNCTION✿: {name}\n✿ARGS✿: {json}"),
    TextForm("harmony", "gpt-oss", "OpenAI's harmony format",
            "<|channel|>commentary to={name} <|constrain|>json<|message|>{json}<|call|>"),
    TextForm("Gemma 4 without tokens", "Gemma 4", "vLLM `gemma4`", "call:{name}{strings}"),
    TextForm("Own tags", "Cline, Roo Code", "their prompts", "<{name}>{arguments}</{name}>",
            "<{key}>{value}</{key}>"),
)  # fmt: skip
"""The forms whose beginning is found in another way than by a tag of the table."""

RESULTS = (
    "tool_response", "tool_result", "tool_results", "tool_output", "tool_outputs",
    "tool_outputs_begin", "tool_output_begin", "function_response", "function_result",
    "function_results", "function_output", "fn_response", "fn_result", "observation",
    "observations", "result", "results", "start_function_response", "tool_call_result",
    "tool_call_response", "outputs_prefix",
)  # fmt: skip
"""Tags around the results of tools."""
SHOWN = (
    "tools", "functions", "available_tools", "available_functions", "system_tools",
    "start_function_declaration", "example", "examples", "quote", "blockquote", "quoted",
    "quotation", "ignored", "ignore",
)  # fmt: skip
"""Tags around declarations, examples and quotations."""
STOPS = (
    "s", "eot_id", "eom_id", "im_end", "endoftext", "end_of_text", "eos", "end", "end_of_turn",
    "end_turn", "turn_end", "end_of_sentence", "call", "return", "eot", "eom", "bot_end", "stop",
    "end_message", "flush", "calls",
)  # fmt: skip
"""Tokens that end a turn or a message."""
THOUGHTS = ("think", "thought", "reason", "reflect", "scratchpad", "monologue", "ponder",
            "deliberat", "analysis", "planning")  # fmt: skip
"""Stems of the words in tags around thoughts."""
THOUGHTS_IN_WORDS = (
    (r"\s*(?:assistant)?analysis(?=[A-Z\s])", r"assistant(?=final|commentary)(?:final)?", True),
    (r"\s*Here(?: is|['’]s) my thought process:", r"Here(?: is|['’]s) my response:", False),
    (r"\s*<unused94>thought", "<unused95>", False),
)
"""Words that begin an answer with thoughts, those that end them, and whether they must end.

The first are those of harmony without its tokens.
"""
