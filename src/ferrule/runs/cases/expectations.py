"""Conditions on what a run did: `called("refund", euros=le(30))`, `never("delete*")`.

A condition on a call is a rule of the approval room: the same patterns for tools and texts, the
same comparisons, the same `when=call(...)`. Called with a run, an expectation returns True or
raises `AssertionError`, so that a plain `assert` shows which calls were made and why none fits,
in any test runner. As a metric of `Evaluate` it is True or False, with the reason as feedback.
"""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.approval.policy import Condition, Rule, has_wildcard
from ferrule.encoding.safe_text import one_line
from ferrule.errors import ConfigurationError, nearest, shown
from ferrule.record import CheckedStruct
from ferrule.runs.cases.conduct import Conduct, MadeCall, conduct_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ferrule.approval.policy import CallCondition

_KEYWORDS = frozenset({*keyword.kwlist, "where", "when"})
"""Names that an argument cannot have in a call of `called`."""
_MOST_CALLS = 30
"""Of the calls in a message."""
_MOST_CHARS = 160
"""Of one call in a message."""


class Judgement(Struct, metaclass=CheckedStruct, frozen=True):
    """Whether a run is as expected, and why not. True as a boolean if it is."""

    score: bool
    feedback: str = ""
    """Why it is not, with the calls that the run made."""

    def __bool__(self) -> bool:
        return self.score


class Expectation:
    """A condition on what a run did. Made by `called`, `never` and the like."""

    def __call__(self, source: Any) -> bool:
        """True for a `Run`, a `Prediction` or a `Trajectory` that is as expected.

        Raises `AssertionError` for any other, with the calls that it made.
        """
        __tracebackhide__ = True  # pytest then shows the line with the `assert`
        judgement = self.judge(source)
        if not judgement:
            raise AssertionError(judgement.feedback)
        return True

    def judge(self, source: Any) -> Judgement:
        """Whether a `Run`, a `Prediction` or a `Trajectory` is as expected, and why not."""
        conduct = conduct_of(source)
        problem = self._problem(conduct)
        if not problem:
            return Judgement(True)
        lines = [f"{self} does not hold: {problem}", *self._calls_in_words(conduct)]
        return Judgement(False, "\n".join(lines))

    def tools_called(self) -> Sequence[str]:
        """The names, or patterns, of the tools that must be called for it to hold."""
        return ()

    def _problem(self, conduct: Conduct) -> str:
        """What is not as expected, in words; empty if everything is."""
        raise NotImplementedError

    def rules(self) -> Sequence[Rule]:
        """The conditions on calls in this expectation."""
        return ()

    def _calls_in_words(self, conduct: Conduct) -> Iterator[str]:
        made_calls = conduct.calls
        if not made_calls:
            yield "The run made no calls."
            return
        yield "The calls of the run:"
        # The calls of the tool that is meant come first if there are too many for a message.
        numbers = sorted(
            range(len(made_calls)), key=lambda number: not self._is_near(made_calls[number])
        )
        for number in sorted(numbers[:_MOST_CALLS]):
            made = made_calls[number]
            yield f"  {number + 1}. {'  ' * made.depth}{self._in_words(made)}"
        if len(made_calls) > _MOST_CALLS:
            yield f"  ... and {len(made_calls) - _MOST_CALLS} more"

    def _is_near(self, made: MadeCall) -> bool:
        return any(rule.is_about(made.call.name) for rule in self.rules())

    def _in_words(self, made: MadeCall) -> str:
        arguments = ", ".join(
            f"{name}={shown(value, 60)}" for name, value in made.call.args.items()
        )
        text = one_line(f"{made.call.name}({arguments})", _MOST_CHARS)
        if made.ran is False:
            return f"{text}: {made.outcome}"
        text += f" -> {made.outcome}"
        unmet = [
            words
            for rule in self.rules()
            if rule.is_about(made.call.name)
            for words in rule.unmet(made.call.name, made.call.args, made.call)
        ]
        if unmet:
            text += f" | {'; '.join(dict.fromkeys(unmet))}"
        return text

    def __repr__(self) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expectation) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class _Calls(Expectation):
    """How often calls of one kind are made."""

    def __init__(self, name: str, rule: Rule, least: int = 0, most: int | None = None) -> None:
        self.name = name
        self._rule = rule
        self._least = least
        self._most = most

    def fits(self, made: MadeCall) -> bool:
        """Whether a call certainly ran and is of this kind."""
        return made.ran is True and _fits(self._rule, made)

    def may_fit(self, made: MadeCall) -> bool:
        """Whether a call is of this kind, and ran as far as the source tells."""
        return made.ran is not False and _fits(self._rule, made)

    def tools_called(self) -> Sequence[str]:
        """The tool, if it must be called."""
        return [self._rule.tool] if self._least else []

    def rules(self) -> Sequence[Rule]:
        return [self._rule]

    def _problem(self, conduct: Conduct) -> str:
        certain = sum(map(self.fits, conduct.calls))
        if certain < self._least:
            if certain == 0:
                return f"no call fits.{_hint(self._rule, conduct)}"
            return f"{certain} of {self._least} calls fit."
        fitting = [number for number, made in enumerate(conduct.calls, 1) if self.may_fit(made)]
        if self._most is not None and len(fitting) > self._most:
            numbers = ", ".join(map(str, fitting[:_MOST_CALLS]))
            if len(fitting) == 1:
                return f"call {numbers} fits."
            return f"{len(fitting)} calls fit: {numbers}."
        return ""

    def __str__(self) -> str:
        counts = {"at_least": self._least, "at_most": self._most}
        arguments = _arguments_text(self._rule)
        if self.name in counts:
            arguments = f"{counts[self.name]}, {arguments}"
        return f"{self.name}({arguments})"


class _InOrder(Expectation):
    """Calls that follow one another."""

    def __init__(self, kinds: Sequence[_Calls]) -> None:
        self._kinds = kinds

    def tools_called(self) -> Sequence[str]:
        """The tools of all its calls."""
        return [tool for kind in self._kinds for tool in kind.tools_called()]

    def rules(self) -> Sequence[Rule]:
        return [rule for kind in self._kinds for rule in kind.rules()]

    def _problem(self, conduct: Conduct) -> str:
        # The earliest fitting call for each kind leaves the most room for those that follow.
        calls = iter(conduct.calls)
        previous: _Calls | None = None
        for kind in self._kinds:
            if not any(kind.fits(made) for made in calls):
                if previous is None:
                    return f"no call fits {kind}."
                return f"no call fits {kind} after {previous}."
            previous = kind
        return ""

    def __str__(self) -> str:
        return f"in_order({', '.join(map(str, self._kinds))})"


class _AskedPerson(Expectation):
    """A question to a person about a call."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def rules(self) -> Sequence[Rule]:
        return [self._rule]

    def _problem(self, conduct: Conduct) -> str:
        if not conduct.knows_questions:
            raise ConfigurationError(
                f"{self} judges a run, or the prediction of a run: a trajectory alone does not "
                "tell whether a person was asked."
            )
        if any(made.asked and _fits(self._rule, made) for made in conduct.calls):
            return ""
        return "no person was asked about such a call."

    def __str__(self) -> str:
        return f"asked_person({_arguments_text(self._rule)})"


class _CostUnder(Expectation):
    """What a run may cost."""

    def __init__(self, dollars: float) -> None:
        self._dollars = dollars

    def _problem(self, conduct: Conduct) -> str:
        if conduct.usage is None:
            raise ConfigurationError(
                f"{self} judges a run, or the prediction of a run: a trajectory alone does not "
                "tell its cost."
            )
        cost = conduct.usage.cost
        if cost is None:
            return "the price of a model is not known."
        if cost < self._dollars:
            return ""
        return f"it cost {cost:.6g} US dollars."

    def __str__(self) -> str:
        return f"cost_under({self._dollars!r})"


def called(
    tool: str = "*",
    /,
    *,
    where: Mapping[str, Any] | None = None,
    when: CallCondition | None = None,
    **args: Condition,
) -> Expectation:
    """A call that ran: `called("refund", euros=le(30))`.

    The tool and the arguments are those of a rule (see `allow`): a name or a pattern; for each
    argument a value to equal, a pattern for text, a comparison, `under("src")` or a function.
    `where` is for arguments named like a keyword here. `when=call(...)` is a condition on the call
    itself. A call that did not fit its tool, or that was refused, did not run.
    """
    return _Calls("called", _rule("called", tool, where, when, args), least=1)


def never(
    tool: str = "*",
    /,
    *,
    where: Mapping[str, Any] | None = None,
    when: CallCondition | None = None,
    **args: Condition,
) -> Expectation:
    """No such call ran (see `called`)."""
    return _Calls("never", _rule("never", tool, where, when, args), most=0)


def at_least(
    count: int,
    tool: str = "*",
    /,
    *,
    where: Mapping[str, Any] | None = None,
    when: CallCondition | None = None,
    **args: Condition,
) -> Expectation:
    """At least `count` such calls ran (see `called`)."""
    rule = _rule("at_least", tool, where, when, args)
    return _Calls("at_least", rule, least=_checked_count("at_least", count))


def at_most(
    count: int,
    tool: str = "*",
    /,
    *,
    where: Mapping[str, Any] | None = None,
    when: CallCondition | None = None,
    **args: Condition,
) -> Expectation:
    """At most `count` such calls ran (see `called`)."""
    rule = _rule("at_most", tool, where, when, args)
    return _Calls("at_most", rule, most=_checked_count("at_most", count))


def in_order(*calls: Expectation) -> Expectation:
    """Such calls ran, one after the other: `in_order(called("find_order"), called("refund"))`.

    Other calls may lie between them. Calls that ran at the same time are in the order of their
    starts.
    """
    kinds: list[_Calls] = []
    for kind in calls:
        if not isinstance(kind, _Calls) or kind.name != "called":
            raise ConfigurationError(f"`in_order` takes `called(...)`; found {shown(kind)}.")
        kinds.append(kind)
    if not kinds:
        raise ConfigurationError("`in_order` takes one `called(...)` or more.")
    return _InOrder(kinds)


def asked_person(
    tool: str = "*",
    /,
    *,
    where: Mapping[str, Any] | None = None,
    when: CallCondition | None = None,
    **args: Condition,
) -> Expectation:
    """A person was asked about such a call (see `called`), whatever the answer; or is asked now."""
    return _AskedPerson(_rule("asked_person", tool, where, when, args))


def cost_under(dollars: float) -> Expectation:
    """The run cost less than so many US dollars. It does not hold if a price is unknown."""
    value: Any = dollars
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(f"`cost_under` takes a number above 0; found {shown(dollars)}.")
    return _CostUnder(dollars)


# -- calls


def _rule(
    name: str,
    tool: Any,
    where: Mapping[str, Any] | None,
    when: Any,
    args: Mapping[str, Any],
) -> Rule:
    if not isinstance(tool, str):
        raise ConfigurationError(
            f"`{name}` takes a tool's name or a pattern, such as 'pay'; found {shown(tool)}."
        )
    rule = Rule("allow", tool, {**args, **(where or {})}, when=when)
    if rule.looks:
        raise ConfigurationError(
            f"`{name}` judges a call by itself: `when=` is `call(rescued=...)` or "
            f"`call(confidence=...)`; found {shown(when)}."
        )
    return rule


def _checked_count(name: str, count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ConfigurationError(f"`{name}` takes a number of calls first; found {shown(count)}.")
    return count


def _fits(rule: Rule, made: MadeCall) -> bool:
    call = made.call
    return rule.is_about(call.name) and not rule.unmet(call.name, call.args, call)


def _hint(rule: Rule, conduct: Conduct) -> str:
    """A name that was perhaps meant, if no call has the name of the tool."""
    names = {made.call.name for made in conduct.calls}
    if has_wildcard(rule.tool) or rule.tool in names:
        return ""
    similar = nearest(rule.tool, names)
    if similar is None:
        return ""
    return f" Did you mean `{similar}`?"


def _arguments_text(rule: Rule) -> str:
    """The arguments of `called` and the like, as they are written in Python."""
    arguments = [repr(rule.tool)]
    for_where: dict[str, Any] = {}
    for name, condition in rule.where.items():
        if name.isidentifier() and name not in _KEYWORDS:
            arguments.append(f"{name}={condition!r}")
        else:
            for_where[name] = condition
    if for_where:
        arguments.append(f"where={for_where!r}")
    if rule.when is not None:
        arguments.append(f"when={rule.when!r}")
    return ", ".join(arguments)
