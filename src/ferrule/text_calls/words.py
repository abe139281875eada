# ruff: noqa: RUF001  words have such apostrophes
"""The words before and between calls that say whether a model makes them. They are English.

Structure decides first, in every language: see `places` and `repeats`, which ask for these words.
They decide only what punctuation cannot, such as who speaks in `The page says:`.
"""

from __future__ import annotations

import re

from ferrule.encoding.pattern import pattern

ANNOUNCES = pattern(
    r"\W*(?:(?:so|and|but|then|now|next|first|sure|ok(?:ay)?)\b\W*)*"
    r"(?:(?:i|we|let me|let us|let|here (?:is|are))\b"
    r"|(?:the |my )?(?:\w+ )?(?:function |tool )?calls?\b"
    r"|(?:calling|running|using|searching|step|action|tool|request|command|invocation)\b|\Z)",
    re.IGNORECASE,
)
"""The beginning of a clause with which a model says that it calls."""
REPORTS = pattern(
    r"\b(?:e\.\s?g\b|for (?:example|instance)|such as|like this|usage|examples?\b|template\b"
    r"|would|could|might|should|used to|must not|cannot|can['’]t|won['’]t"
    r"|says?|said|states?|reads?|writes?|wrote|written by|contains?|contained|includes?"
    r"|shows?|showed|quot(?:ed|es|ing|ations?)|quote (?:it|this|that|them|only|from)"
    r"|the following quote|returned|replied|answered|sent|received|found|inject(?:ed|ion)"
    r"|ignor(?:e[ds]?|ing)|disregard(?:ed|s|ing)?"
    r"|(?:not|n['’]t|never|no) (?:\w+ ){0,3}?(?:run|call(?:s|ed)?|execute[d]?|use|invoke[d]?"
    r"|follow(?:ed)?|obey(?:ed)?|made|meant|write|send|make)"
    r"|(?:if|when|unless) (?:you|a|an|the|they|it|some)\b.{0,60}|you (?:can|may)"
    r"|available (?:functions|tools)|signatures?|(?:these|following) forms?|has this form)\b"
    r"(?:[^,.;!?\n]|\.(?!\s)){0,80}\Z",
    re.IGNORECASE,
)
"""The end of a clause that gives a call as an example, or as the words of somebody else."""
LEAD_IN = pattern(
    r"(?:[-*+•]|\(?\d{1,3}[.)]|step \d+:?)(?=\s|\Z)|[*_~]+|return\b"
    r"|(?:assistant)?commentary\b|(?:assistant|calls?|action)[*_]*:|\Z",
    re.IGNORECASE,
)
"""A bullet, a number, the speaker or an announcing word before a call, and markup around."""
LABEL = pattern(r"(?:\A|\n)[^\w\n]*(?:(?:\w+ )?calls?|action|step \d+)[^\w\n]*\s*\Z", re.IGNORECASE)
"""A line that names the call behind it: it says nothing about who makes the call."""
REFERS_AHEAD = pattern(r"\b(?:following|below|example|usage)\b", re.IGNORECASE)
"""A word with which a finished sentence speaks of what follows it."""
_RESULTS = r"(?:results?|outputs?|responses?)"
_AFTER_CALLS = {
    "label": r"^[ \t]*(?:#{1,6}[ \t]*)?[*_\[(]{0,3}(?:"
    r"(?P<turn>(?:new |next )?(?:user|human|customer)(?: (?:message|query|question|request|turn))?"
    r"|instructions?|observation"
    rf"|(?:tool|function|api|call|system)[ _-](?:call )?{_RESULTS})"
    rf"|(?P<question>question|q)|(?P<result>(?:the )?{_RESULTS})"
    r")[*_\])]{0,3}[ \t]*:",
    "role": r"\s*(?:user|human|tool|function|ipython|environment|observation|system|developer)s?\b",
    "role token": r"(?:user|human|inst|ipython)(?:token)?\Z",
    "code": r"^[ \t]*(?:def \w+\(|class \w.{0,80}:[ \t]*$|import [\w.]+(?: as \w+)?[ \t]*$"
    r"|from [\w.]+ import |if __name__\b|assert .{0,200}(?:==|\(|is not))"
    r"|^\W{0,8}(?:(?:unit )?tests?|testing)"
    r"(?: (?:it|this|them|code|cases?|the \w+(?: calls?)?))?\W{0,8}$"
    r"|\b(?:with|these|some|following|here (?:is|are)) (?:\w+ ){0,2}"
    r"(?:test (?:code|cases?|program|script)|unit tests?)\b",
    "summary": r"\b(?:summar\w+|recap\w*|in short|altogether|in total|all together|to repeat"
    r"|repeated|for (?:clarity|reference|completeness|convenience)"
    r"|(?:so|here are) (?:all )?(?:the|my) (?:\w+ )?calls)\b",
    "another": r"\b(?:again|once more|one more|another|twice|repeat"
    r"|re-?(?:try|run|check|do|send|roll)"
    r"|(?:second|third|fourth|fifth|other|next|last) (?:\w+ )?(?:time|one|call|attempt|try))\b",
    "sequence": r"\b(?:then|next|also|afterwards?|after (?:that|this|which)|later)\b"
    r"|\A\W*(?:second|third|fourth)",
    "series": r"[ \t]*[-*\u2022][ \t]|\W{0,8}\d{1,3}[.):]"
    r"|\W{0,8}(?:step|call|request|query|task|part) ?\d|\W{0,8}(?:\w+ ){0,2}#?\d{1,3}\W*\Z",
    "for": r"\W*for (?!example|reference|clarity|completeness|convenience)",
    "word": r"[^\W\d_]{2}",
    "fence": r"```\w*",
    "sentence end": r"[.!?]\s|\n",
    "header word": r"\s*(?:assistant|model|commentary|analysis|final|json)\b",
}
AFTER_CALLS = {
    name: pattern(expression, re.IGNORECASE | re.MULTILINE)
    for name, expression in _AFTER_CALLS.items()
}
"""What follows calls, or asks for another one."""
