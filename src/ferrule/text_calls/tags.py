"""Tags and special tokens around calls, and calls whose arguments are tags.

Such calls are `<function=f><parameter=x>`, `<invoke name="f"><parameter name="x">`,
`f<arg_key>x</arg_key><arg_value>`, `<tool_name>f</tool_name>`, and similar forms.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, cast

from ferrule.encoding.repair import read_json
from ferrule.schema.nodes import Schema, declared_types, is_list
from ferrule.text_calls.json_form import drafts_of_args, read_value, unreadable
from ferrule.text_calls.offers import Draft, Effort, Offer, OfferedTools

_Kind = Literal["call", "close", "aside", "stop", "tagged", "other"]
"""`call` announces calls, `close` ends them, `aside` opens thoughts, results or declarations, `stop` ends the text."""

TAG = re.compile(
    r"<<?/?[|\uff5c]?/?[A-Za-z][^<>\n]{0,160}>>?|\[/?[A-Z][A-Z_]{2,30}\]|</[|\uff5c]DSML[^<>\n]{0,80}>"
)

_SPACE = r"(?:[|\uff5c]?\s?\w+\s?[|\uff5c:])?"  # a namespace, as in `minimax:`
_QUOTED = r"""["']?(?P<{}>[^"'<>\n]{{1,120}}?)["']?"""
_INVOKE = re.compile(
    rf"<{_SPACE}\s?(?:function|invoke|tool|tool_call|call)(?:\s*=\s*|\s+(?:name|tool)\s*=\s*){_QUOTED.format('name')}(?:\s[^<>\n]*)?>"
    r"""|<\|open\|>call\s[^<>\n]*?tool="(?P<opened>[^"<>\n]{1,120})"[^<>\n]*<\|sep\|>"""
)
_PARAMETER = re.compile(
    rf"\s*(?:<{_SPACE}\s?(?:parameter|param|arg|argument)(?:\s*=\s*|\s+(?:name|key)\s*=\s*){_QUOTED.format('key')}(?P<more>\s[^<>\n]*)?>"
    r"""|<\|open\|>argument\s+key="(?P<opened>[^"<>\n]{1,120})"(?P<typed>[^<>\n]*)<\|sep\|>)"""
)
_PARAMETER_END = re.compile(
    rf"(?P<close></{_SPACE}\s?(?:parameter|param|arg|argument)\s*>|<\|close\|>argument<\|sep\|>)"
    rf"|<{_SPACE}\s?(?:parameter|param|arg|argument)\s*=|</{_SPACE}\s?(?:function|invoke|tool_call|tool|call)s?\s*>"
)
_INVOKE_END = re.compile(
    rf"\s*(?:</{_SPACE}\s?(?:function|invoke|tool|tool_call|call)\s*>|<\|close\|>call<\|sep\|>)"
)
_NAME_TAG = re.compile(
    r"\s*(?:<invoke>\s*)?<(?:tool_|function_)?name>\s*(?P<name>[^<>\n]{1,120}?)\s*</(?:tool_|function_)?name>\s*"
    r"(?:<(?P<wrap>parameters|arguments|args|input|tool_input|params)>)?\s*"
)
_NAMED_TAG = re.compile(r"<(?P<name>[A-Za-z_][\w.-]{0,80})>")
_CHILD = re.compile(r"\s*<(?P<key>[A-Za-z_][\w.-]{0,80})>")
_ARG_KEY = re.compile(
    r"\s*<(?:\w+_)?arg_key>\s*([^<>\n]{1,120}?)\s*</(?:\w+_)?arg_key>\s*<(?:\w+_)?arg_value>"
)
_ARG_END = re.compile(
    r"(?P<close></(?:\w+_)?arg_value>)|<(?:\w+_)?arg_key>|</(?:\w+_)?tool_call>|<(?:\w+_)?tool_call>"
)
_CALLS = re.compile(
    r"(?:start|begin|content|multiple|longcat)*"
    r"(?:(?:tool|function)s?(?:call|use|invoke|invocation|request)(?:s|ing)?|invoketool(?:json|text)?)"
    r"(?:section|block|json|tag)?(?:start|begin)?"
    r"|pythontag|pythonstart|startaction|actionstart|actions?|plugin|toolsprefix|toolcode|startfunctioncall"
)
_ASIDES = re.compile(
    r"(?:begin|start|content)?(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad|contentthinking"
    r"|(?:tool|function|fn)s?(?:call)?(?:response|result|output)s?(?:begin|start)?|observations?|results?"
    r"|tools|functions|(?:available|system)(?:tool|function)s|functiondeclaration|examples?|(?:block)?quote|quoted|quotation|ignored?)"
)
_QUOTATIONS = re.compile(r"(?:block)?quote|quoted|quotation|ignored?")
_THOUGHTS = re.compile(
    r"(?:begin|start|content)?(?:think|thought|reason|reflect|scratch|contentthink)"
)
_STOPS = frozenset(
    {
        "s",
        "eotid",
        "eomid",
        "imend",
        "endoftext",
        "eos",
        "end",
        "endofturn",
        "endturn",
        "endofsentence",
        "call",
        "return",
        "eot",
        "botend",
    }
)
_OF_CALLS = frozenset(
    {
        "invoke",
        "function",
        "functions",
        "tool",
        "tools",
        "call",
        "calls",
        "parameter",
        "parameters",
        "argument",
        "arguments",
    }
)
_BLANK = re.compile(r"\s*")
_TYPES: dict[str, str] = {"any": "", "str": "string"}


class Tag:
    """The meaning of a tag, judged by its words."""

    __slots__ = ("is_quotation", "is_thought", "kind", "stem")

    def __init__(self, kind: _Kind, stem: str) -> None:
        self.kind = kind
        self.stem = stem
        """Its letters, without the marks of an opening or closing tag."""
        self.is_quotation = _QUOTATIONS.fullmatch(stem) is not None
        self.is_thought = _THOUGHTS.match(stem) is not None


@lru_cache(maxsize=1024)
def tag_of(text: str) -> Tag:
    """Classify a tag, given with its brackets."""
    inner = text.strip("<>[]")
    word = (
        re.split(r"[\s=]", inner.strip("/|\uff5c "), maxsplit=1)[0]
        if "=" in inner
        else inner.strip("/|\uff5c ")
    )
    word = re.split(r"[:|\uff5c]", word)[-1]
    letters = "".join(each for each in word if each.isascii() and each.isalpha()).lower()
    if (
        inner.startswith("/")
        or inner[1:2] == "/"
        or "/" in inner[:3]
        or (inner.endswith("|") and not inner.startswith("|"))
    ):
        return Tag("close", letters)
    if letters in _STOPS and not text.startswith("["):
        return Tag("stop", letters)
    if _INVOKE.match(text):
        return Tag("tagged", letters)
    if letters.endswith(("end", "suffix", "stop")) or letters.startswith("end"):
        return Tag("close", letters.removesuffix("end").removeprefix("end"))
    if _CALLS.fullmatch(letters) or text.startswith("<<function"):
        return Tag("call", letters)
    if _ASIDES.fullmatch(letters):
        return Tag("aside", letters)
    if letters in {"invoke", "name", "toolname", "functionname", "open"}:
        return Tag("tagged", letters)
    return Tag("other", letters)


def closes(tag: Tag, opening: Tag) -> bool:
    """Whether a tag closes the opening one."""
    if tag.kind != "close":
        return False
    return (
        tag.stem == opening.stem
        or opening.stem.removesuffix("begin").removesuffix("start").removeprefix("start")
        == tag.stem
    )


def ends_calls(tag: Tag) -> bool:
    """Whether a closing tag ends calls, and is not other markup."""
    return _CALLS.fullmatch(tag.stem) is not None or tag.stem in _OF_CALLS or tag.stem in _STOPS


def read_tagged(
    text: str, at: int, offers: OfferedTools, effort: Effort
) -> tuple[list[Draft], int] | None:
    """The call in tags at a position."""
    invoke = _INVOKE.match(text, at)
    if invoke is not None:
        offer = offers.get(html.unescape(invoke["name"] or invoke["opened"]))
        return _body(text, invoke.end(), offer, offers, effort) if offer is not None else None
    named = _NAME_TAG.match(text, at)
    offer = offers.get(named["name"]) if named is not None else None
    if named is None or offer is None:
        return _read_named_tag(text, at, offers, effort)
    found = _body(text, named.end(), offer, offers, effort)
    if found is None:
        return None
    wrap = named["wrap"]
    end = re.compile(rf"\s*(?:</{wrap}>)?\s*(?:</invoke>)?").match(text, found[1]) if wrap else None
    return found[0], end.end() if end is not None else found[1]


def _read_named_tag(
    text: str, at: int, offers: OfferedTools, effort: Effort
) -> tuple[list[Draft], int] | None:
    """`<search><query>cats</query></search>`. The arguments must fit, because other markup may have the same tags."""
    named = _NAMED_TAG.match(text, at)
    offer = offers.get(named["name"]) if named is not None else None
    if named is None or offer is None:
        return None
    repairs: list[str] = []
    args, end = _children(text, named.end(), offer, effort, repairs)
    closing = re.compile(rf"\s*</{re.escape(named['name'])}>").match(text, end)
    if closing is None or not args or not offer.fits(args):
        return None
    return [Draft(offer, args, tuple(repairs))], closing.end()


def read_arg_keys(text: str, at: int, offer: Offer, effort: Effort) -> tuple[Draft, int] | None:
    """The `<arg_key>` and `<arg_value>` pairs after a tool's name."""
    args: dict[str, Any] = {}
    repairs: list[str] = []
    key = _ARG_KEY.match(text, at)
    if key is None:
        return None
    while key is not None:
        args[key[1]], end = _argument(
            text,
            key.end(),
            offer.properties.get(key[1]),
            "",
            ending=_ARG_END,
            effort=effort,
            repairs=repairs,
        )
        at = _behind(end, len(text))
        key = _ARG_KEY.match(text, at)
    return Draft(offer, args, tuple(repairs)), at


def _body(
    text: str, at: int, offer: Offer, offers: OfferedTools, effort: Effort
) -> tuple[list[Draft], int] | None:
    """The arguments of a call whose tag names the tool: JSON, parameters, or one tag for each argument."""
    args: dict[str, Any] = {}
    repairs: list[str] = []
    first = skip(_BLANK, text, at)
    if text.startswith("{", first):
        found = read_value(text, first, effort)
        draft = drafts_of_args(offer, found[0], offers) if found is not None else None
        if found is None or draft is None:
            closing = _INVOKE_END.search(text, first)
            effort.spend((closing.end() if closing is not None else len(text)) - first)
            return (
                ([unreadable(offer, text[first : closing.start()].strip())], closing.end())
                if closing is not None
                else None
            )
        return [draft._replace(repairs=(*found[2], *draft.repairs))], skip(
            _INVOKE_END, text, found[1]
        )
    parameter = _PARAMETER.match(text, at)
    if parameter is None:
        args, at = _children(text, at, offer, effort, repairs)
        if not args and _INVOKE_END.match(text, at) is None and offer.required:
            return None
    while parameter is not None:
        key, said = (
            html.unescape(parameter["key"] or parameter["opened"]),
            parameter["more"] or parameter["typed"] or "",
        )
        args[key], end = _argument(
            text,
            parameter.end(),
            offer.properties.get(key),
            said,
            ending=_PARAMETER_END,
            effort=effort,
            repairs=repairs,
        )
        at = _behind(end, len(text))
        parameter = _PARAMETER.match(text, at)
    return [Draft(offer, args, tuple(repairs))], skip(_INVOKE_END, text, at)


def _children(
    text: str, at: int, offer: Offer, effort: Effort, repairs: list[str]
) -> tuple[dict[str, Any], int]:
    """`<city>Paris</city>`: one tag for each argument."""
    args: dict[str, Any] = {}
    child = _CHILD.match(text, at)
    while child is not None and (child["key"] in offer.properties or not offer.closed):
        closing = re.compile(f"</{re.escape(child['key'])}>")
        value, end = _argument(
            text,
            child.end(),
            offer.properties.get(child["key"]),
            "",
            ending=closing,
            effort=effort,
            repairs=repairs,
        )
        if end is None:
            effort.spend(len(text) - child.end())
            break
        args[child["key"]] = value
        at = end.end()
        child = _CHILD.match(text, at)
    return args, at


def skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """The position after a pattern, if it matches here; otherwise the same position."""
    found = pattern.match(text, at)
    return found.end() if found is not None else at


def _behind(end: re.Match[str] | None, length: int) -> int:
    """The position after an argument: after its closing tag, or before another tag that ends it."""
    if end is None:
        return length
    if end["close"]:
        return end.end()
    return end.start()


def _argument(
    text: str,
    at: int,
    schema: Any,
    said: str,
    *,
    ending: re.Pattern[str],
    effort: Effort,
    repairs: list[str],
) -> tuple[Any, re.Match[str] | None]:
    """The value of an argument, and the tag that ends it. A list or an object is read first, as its strings may contain that tag."""
    first = skip(_BLANK, text, at)
    if text.startswith(("{", "["), first) and not _is_text(text[first], schema, said):
        found = read_value(text, first, effort)
        end = ending.match(text, skip(_BLANK, text, found[1])) if found is not None else None
        if found is not None and end is not None:
            repairs += [each for each in found[2] if each not in repairs]
            return found[0], end
    end = ending.search(text, at)
    return _decode(
        text[at : end.start() if end is not None else len(text)], schema, said, repairs
    ), end


def _is_text(bare: str, schema: Any, said: str) -> bool:
    """Whether a value in tags is text, and not JSON: by its tag, its schema, or its first character."""
    if 'string="true"' in said or 'type="string"' in said:
        return True
    if 'string="false"' in said or "type=" in said:
        return False
    kinds = kinds_of(schema)
    if "string" in kinds:
        return not (bare == "null" and "null" in kinds)
    return not kinds and not (bare.startswith(("{", "[")) and schema is not None)


def _decode(value: str, schema: Any, said: str, repairs: list[str]) -> Any:
    """Decode a value from text: as JSON if the tag or the schema says that it is not a string."""
    if 'string="true"' in said or 'type="string"' in said:
        return value
    value = value.removeprefix("\r").removeprefix("\n").removesuffix("\n").removesuffix("\r")
    if _is_text(value.strip(), schema, said):
        return value
    try:
        decoded, needed = read_json(value.strip())
    except ValueError:
        return value
    repairs += [each for each in needed if each not in repairs]
    return decoded


def kinds_of(schema: Any) -> set[str]:
    """The JSON types that a schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    found = cast("Schema", schema)
    kinds = {each for each in declared_types(found) if isinstance(each, str)}  # pyright: ignore[reportUnnecessaryIsInstance]  of any JSON
    for key in ("anyOf", "oneOf"):
        branches: Any = found.get(key)
        if is_list(branches):
            kinds = kinds.union(*map(kinds_of, branches))
    enum: Any = found.get("enum")
    if not kinds and is_list(enum) and any(isinstance(each, str) for each in enum):
        return {"string"}
    return {_TYPES.get(each, each) for each in kinds} - {""}
