"""Find the calls in a text, in one pass.

The scan stops at each mark that may begin a call, and tries each form there. No text is read twice.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.encoding.repair import read_json
from ferrule.text_calls.continuation import Continuation
from ferrule.text_calls.forms import FENCE, PYTHON_LIST, Forms, add_repairs
from ferrule.text_calls.json_form import broken_call, drafts_of, drafts_of_args, read_value
from ferrule.text_calls.offers import Effort
from ferrule.text_calls.python_form import read_python_calls, read_python_list
from ferrule.text_calls.quotations import Quotations
from ferrule.text_calls.surroundings import BESIDE, Surroundings, are_signatures
from ferrule.text_calls.tags import TAG, closes, read_tagged, skip, tag_of

if TYPE_CHECKING:
    from ferrule.text_calls.offers import Draft, OfferedTools

_ANCHOR = re.compile(TAG.pattern + r"""|```|\[(?=\s*['"`{\w])|\{(?=\s*[\\"'\w}])|\(""")
_FENCE_OPEN = re.compile(r"```\w*[\s\[]*\Z")
_JSON_LIST = re.compile(r"\[\s*\{")
_BEFORE_NAME = re.compile(r"(?:.*[^\w.:/\\-])?[\d.:/\\-]*", re.DOTALL)
_BEHIND_STRONG = (
    ("to=", re.compile(r"\bto=(?P<name>[\w.:/-]+?)(?:<[^\n{]{0,80}|\s[^\n{]{0,80}|json)?\Z")),
    (
        "\u273f",
        re.compile(r"\u273fFUNCTION\u273f:\s*(?P<name>[\w.:/-]+)\s*\n\u273fARGS\u273f:\s*\Z"),
    ),
    ("<|content|>", re.compile(r"<\|recipient\|>\s*(?P<name>[\w.:/-]+)\s*<\|content\|>\s*\Z")),
    (">>>", re.compile(r"(?:\A|[\n>}])>>>\s?(?P<name>[\w.:/-]+)\s*\n\s*\Z")),
    (
        "Action",
        re.compile(
            r"(?:\A|\n)\W{0,4}Action\W{0,4}:\W{0,4}(?P<name>[\w.:/ \\-]+?)\W{0,4}\n+\W{0,4}"
            r"(?:Action[ _]?Input|Input|Arguments|Args|Parameters)\W{0,4}:\s*(?:```\w*\s*)?\Z"
        ),
    ),
)
_BEHIND_WEAK = re.compile(
    r"(?:\A|\n)[ \t]*[`*]*(?P<name>[^\W\d](?:[\w.:/-]|\\_)*)[`*]*[ \t]*(?:\r?\n)?[ \t]*(?:```\w*\s*)?\Z"
)
_THOUGHT_END = re.compile(
    r"(?:</think(?:ing)?>|\[/THINK\]|<\|end_of_thought\|>)(?=\s*\n|\s*\Z|\s*<)"
)  # otherwise it is in an argument
_THOUGHT_START = re.compile(r"<think(?:ing)?>|\[THINK\]|<\|begin_of_thought\|>")
_CHANNEL_END = re.compile(r"<\|(?:end|start|channel|call|return)\|>")
_NEAR = 240


class Scan:
    """The state of the pass: the calls found, and where a weak sign is ignored."""

    __slots__ = (
        *(
            "_around",
            "_continuation",
            "_effort",
            "_fence_close",
            "_forms",
            "_offers",
            "_quotations",
            "_text",
        ),
        *("_unclosed", "_weak_from", "drafts", "spans"),
    )

    def __init__(self, text: str, offers: OfferedTools) -> None:
        self._text = text
        self._offers = offers
        self._effort = Effort(len(text))
        self._forms = Forms(text, offers, self._effort)
        self._quotations = Quotations(text)
        self._continuation = Continuation(text)
        self._weak_from = 0
        self._fence_close = -1
        self._unclosed: set[str] = set()
        self.drafts: list[Draft] = []
        self.spans: list[tuple[int, int]] = []
        """Start and end of the text of each call, in order."""
        self._around = Surroundings(text, self.spans)

    def run(self) -> None:
        """Scan the text once."""
        at, thought = 0, self._thought_end(0, 0)
        while True:
            anchor = (
                None
                if self._continuation.is_over or self._effort.left <= 0
                else _ANCHOR.search(self._text, at)
            )
            if thought is not None and (
                anchor is None or anchor.start() >= thought.start() or at > thought.start()
            ):
                is_argument = bool(self.spans) and self.spans[-1][1] > thought.start()
                if not is_argument:
                    self._forget()
                    at = thought.end()
                thought = self._thought_end(at, thought.start()) if is_argument else None
            elif anchor is None:
                return
            else:
                at = max(self._visit(anchor), at + 1)

    def _thought_end(self, at: int, seen: int) -> re.Match[str] | None:
        """The next closing tag of thoughts that the prompt opened. No opening tag stands before `seen`."""
        if "/" not in self._text and "end_of" not in self._text:
            return None
        end = _THOUGHT_END.search(self._text, at)
        return (
            end
            if end is not None and _THOUGHT_START.search(self._text, seen, end.start()) is None
            else None
        )

    def _forget(self) -> None:
        """Drop the calls and signs found so far: they were in the model's thoughts."""
        self.drafts.clear()
        self.spans.clear()
        self._continuation = Continuation(self._text)
        self._quotations = Quotations(self._text)
        self._around = Surroundings(self._text, self.spans)
        self._unclosed.clear()
        self._weak_from, self._fence_close = 0, -1
        self._effort.left = max(self._effort.left, len(self._text))

    def _visit(self, anchor: re.Match[str]) -> int:
        mark = anchor[0]
        start = anchor.start()
        if mark == "(":
            return self._line(start)
        if mark == "```":
            return self._fence(start)
        if mark == "{":
            return self._object(start)
        if mark == "[":
            return self._list(start)
        return self._tag(anchor)

    def _keep(self, drafts: list[Draft], start: int, end: int) -> int:
        if self._quotations.quotes(start, end):
            return end
        behind = self.spans[-1][1] if self.spans else 0
        if self.drafts and self._continuation.ignores(behind, start):
            self._weak_from = len(self._text)
            return end
        self.drafts += self._continuation.without_repeats(behind, start, drafts, self.drafts)
        self.spans.append((start, end))
        return end

    # --- tags ---

    def _tag(self, anchor: re.Match[str]) -> int:
        start, end = anchor.span()
        tag = tag_of(anchor[0])
        if tag.kind in {"call", "tagged"} and self._in_a_sentence(start):
            return max(end, self._text.find("`", end))
        if tag.kind == "call":
            is_code = tag.stem == "toolcode"
            drafts, last = (
                self._forms.tool_code(end, "</tool_code>")
                if is_code
                else self._forms.calls(end, is_marked=True)
            )
            if drafts:
                return self._keep(drafts, start, last)
            self._effort.spend(0)
        elif tag.kind == "tagged" or (
            (tag.kind == "other" or tag.is_quotation)
            and self._offers.get(anchor[0].strip("<>")) is not None
        ):
            found = read_tagged(self._text, start, self._offers, self._effort)
            if found is not None and (
                tag.kind == "tagged" or self._around.stand_alone(start, found[1])
            ):
                return self._keep(found[0], start, found[1])
            self._effort.spend(0)
        if tag.kind == "aside":
            return self._behind_aside(anchor)
        if tag.stem == "channel" and self._text.startswith("analysis", end):
            closing = _CHANNEL_END.search(self._text, end)
            return closing.start() if closing is not None else end
        return end

    def _in_a_sentence(self, start: int) -> bool:
        """Whether the tag is inline code, and so only mentioned."""
        return (
            self._text[start - 1 : start] == "`"
            and self._text[max(0, start - 3) : start] != "```"
            and not self._around.edges(start, start).begins
        )

    def _behind_aside(self, anchor: re.Match[str]) -> int:
        opening = tag_of(anchor[0])
        if opening.stem in self._unclosed:
            return anchor.end()
        for found in TAG.finditer(self._text, anchor.end()):
            tag = tag_of(found[0])
            if closes(tag, opening) or (
                opening.stem.startswith("content") and found[0] == "<|end_message|>"
            ):
                if opening.is_thought:
                    self._continuation.skip_thought(found.end())
                return found.end()
        self._unclosed.add(opening.stem)
        if opening.is_quotation:
            return anchor.end()
        if opening.is_thought:
            self._weak_from = len(self._text)  # a truncated thought: only an announced call ends it
            return anchor.end()
        return len(self._text)

    # --- weak signs ---

    def _fence(self, start: int) -> int:
        fence = FENCE.match(self._text, start)
        if fence is None or start == self._fence_close:
            return start + 3
        close = self._forms.end("```", fence.end())
        is_line = close < len(self._text) and self._text.find("\n", start, close) < 0
        if fence[1] is None and not is_line and not self._around.edges(start, start).begins:
            return start + 3  # in a sentence, where inline code ends on its line
        behind = min(close + 3, len(self._text))
        if start >= self._weak_from:
            language = (fence[1] or fence[2] or "").lower()
            is_code = "tool" in language or "function" in language
            drafts, end = (
                self._forms.tool_code(fence.end(), "```")
                if is_code
                else self._forms.calls(fence.end(), is_marked=False, faults=True)
            )
            if not any(each.args or not each.fault for each in drafts):
                drafts = []
            if drafts:  # a fence in an argument does not end the block
                close = self._forms.end("```", end)
                behind = min(close + 3, len(self._text))
            is_all = not self._text[end:close].strip(" \t\r\n;,`}])")
            is_call = (
                drafts
                and is_all
                and not are_signatures(drafts, is_whole=False)
                and self._around.edges(start, start).begins
            )
            if is_call and not self._around.is_example(start, behind):
                return self._keep(drafts, start, behind)
            self._weak_from = max(self._weak_from, behind)
        self._fence_close = close
        return fence.end()

    def _line(self, at: int) -> int:
        """`f(a=1)` on its own line."""
        if (
            not self._text[max(0, at - 5) : at].rstrip(" *`")[-1:].isidentifier()
            and not self._text[at - 1 : at].isdigit()
        ):
            return at + 1
        low = max(self._text.rfind("\n", max(0, at - _NEAR), at) + 1, at - _NEAR)
        head = self._text[low:at].rstrip("*` ")
        start = low + skip(_BEFORE_NAME, head, 0)
        name = self._text[start : low + len(head)]
        if not name or low < self._weak_from:
            return at + 1
        if self._offers.get(name) is None:
            colon = name.rfind(":") + 1
            if self._offers.spaced and self._offers.get(head.lstrip(BESIDE)) is not None:
                start = at - len(head.lstrip(BESIDE))
            elif colon and self._offers.get(name[colon:]) is not None:
                start += colon
            else:
                self._effort.spend(0)
                return at + 1
        drafts, end = read_python_calls(self._text, start, self._offers, self._effort)
        if not drafts:
            self._effort.spend(at - low)
            return at + 1
        edges = self._around.edges(start, end)
        if are_signatures(drafts, is_whole=edges.is_whole):
            return end
        if edges.is_whole:
            return self._keep(drafts, start, end)
        fits = any(each.args or each.fault for each in drafts) and all(
            each.fault or each.offer.fits(each.args) for each in drafts
        )
        if edges.begins and edges.ends and not self._around.is_example(start, end) and fits:
            return self._keep(drafts, start, end)
        return end

    def _list(self, at: int) -> int:
        if at < self._weak_from:
            return at + 1
        if PYTHON_LIST.match(self._text, at) is not None:
            found = read_python_list(self._text, at, self._offers, self._effort)
            if found is None:
                self._effort.spend(0)
                return at + 1
            return self._weakly(found[0], at, found[1])
        if _JSON_LIST.match(self._text, at) is None:
            return at + 1
        value = read_value(self._text, at, self._effort)
        if value is None:
            return at + 1
        drafts = drafts_of(value[0], self._offers, marked=False) or []
        return self._weakly([add_repairs(each, value[2]) for each in drafts], at, value[1])

    def _object(self, at: int) -> int:
        found = read_value(self._text, at, self._effort)
        if found is None:
            return self._broken_object(at)
        value, end, repairs = found
        drafts = (
            (drafts_of(value, self._offers, marked=False) or []) if at >= self._weak_from else []
        )
        if drafts:
            return self._weakly([add_repairs(each, repairs) for each in drafts], at, end)
        before = self._text[max(self.spans[-1][1] if self.spans else 0, at - _NEAR) : at]
        if not isinstance(value, dict) or self._effort.left < 0:
            return end
        for sign, pattern in _BEHIND_STRONG:
            named = pattern.search(before) if sign in before else None
            draft = self._argued(named, value)
            if named is not None and draft is not None:
                return self._keep(
                    [add_repairs(draft, repairs)], at - len(before) + named.start(), end
                )
        if not before.rstrip(" \t\r\n`*")[-1:].isalnum() and "```" not in before:
            return end
        self._effort.spend(32)
        named = _BEHIND_WEAK.search(before)
        draft = self._argued(named, value)
        if named is not None and draft is not None and draft.offer.fits(draft.args):
            start = at - len(before) + named.start("name")
            edges = self._around.edges(start, end)
            in_fence = "```" in named[0]
            if (
                edges.begins
                and edges.ends
                and (in_fence or start >= self._weak_from)
                and not self._around.is_example(start, end)
            ):
                return self._keep([add_repairs(draft, repairs)], start, end)
        return end

    def _broken_object(self, at: int) -> int:
        """Unparsable JSON: repaired if it is the whole text and only lost a brace or has escaped quotes, or else a call with a fault."""
        if (
            not self.spans
            and self._around.edges(at, len(self._text)).is_whole
            and (drafts := self._mended(at))
        ):
            return self._keep(drafts, at, self._around.last)
        found = broken_call(self._text, at, self._offers, self._effort)
        if found is None:
            return at + 1
        in_fence = _FENCE_OPEN.search(self._text, max(0, at - 40), at) is not None
        if (
            (in_fence or at >= self._weak_from)
            and self._around.edges(at, found[1]).begins
            and not self._around.is_example(at, found[1])
        ):
            return self._keep([found[0]], at, found[1])
        return found[1]

    def _mended(self, at: int) -> list[Draft]:
        last = self._around.last
        drafts = self._forms.unclosed(at, last)
        if drafts is None and self._text.startswith("{\\", at):
            try:
                value, repairs = read_json(self._text[at:last])
            except ValueError:
                return []
            drafts = [
                add_repairs(each, repairs)
                for each in drafts_of(value, self._offers, marked=False) or ()
            ]
        return drafts or []

    def _argued(self, named: re.Match[str] | None, args: Any) -> Draft | None:
        offer = self._offers.get(named["name"]) if named is not None else None
        return drafts_of_args(offer, args, self._offers) if offer is not None else None

    def _weakly(self, drafts: list[Draft], start: int, end: int) -> int:
        """Keep calls without an announcement, unless they are inside a sentence or are called an example."""
        is_whole = self._around.edges(start, end).is_whole
        if (
            drafts
            and self._around.stand_alone(start, end)
            and not are_signatures(drafts, is_whole=is_whole)
        ):
            self._keep(drafts, start, end)
        return end
