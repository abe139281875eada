"""Rules that decide about calls in place of a person.

A `Policy` is made beforehand, a `Grant` is given with a decision. Both judge a tool's name and its
validated arguments, as JSON; a policy allows, asks or denies.

A doubt never lets a call through: if a value cannot be compared with a rule's condition, an `allow`
does not apply, and an `ask` or a `deny` does.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from ferrule.approval.looking import ConditionFunction, read_condition
from ferrule.approval.paths import Under, conditions_on_server, looks_like_path, read_under
from ferrule.encoding.encode import digest_of, json_text, jsonable, opaque_text
from ferrule.encoding.safe_text import one_line, reveal
from ferrule.errors import (
    ConfigurationError,
    checks_keywords,
    naming_failure,
    nearest,
    refuse_async,
    refuse_awaitable,
    refuse_other_arguments,
    shown,
)
from ferrule.record import CheckedStruct
from ferrule.schema.nodes import is_sequence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ferrule.values.calls.call import CheckedCall, ToolCall, ToolSpec
    from ferrule.values.provider_tools import ProviderTool

Verdict = Literal["allow", "ask", "deny"]
INPUTS_OF_REVIEWER = frozenset({"request", "calls", "tool", "call"})
"""The texts that a program which reviews calls gets, if it has them as inputs."""
# Any value. The function is named so that a type checker infers the parameter of a lambda.
Condition = Callable[[Any], object] | object
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:E[+-]?[0-9]{1,3})?")
"""A number as text, as JSON has a `Decimal`; others are none, whatever a tool reads in them."""
_STRICTNESS: dict[Verdict, int] = {"allow": 0, "ask": 1, "deny": 2}


class Compared(Struct, frozen=True):
    """A condition on the order of a number, a text or a date: `gt(100)`. Call it with a value.

    Values are the arguments as JSON, in which a `Decimal` and a date are texts.
    """

    sign: Literal[">", ">=", "<", "<="]
    bound: int | float | str
    """A finite number, or a text. A `Decimal` becomes a number, a date its text."""

    def __post_init__(self) -> None:
        force_setattr(self, "bound", _plain_bound(self.bound))

    def __call__(self, value: Any) -> bool | None:
        """Whether the value meets the condition; None if the two cannot be compared."""
        order = _order(value, self.bound)
        if order is None:
            return None
        match self.sign:
            case ">":
                return order > 0
            case ">=":
                return order >= 0
            case "<":
                return order < 0
            case "<=":
                return order <= 0

    def __repr__(self) -> str:
        names = {">": "gt", ">=": "ge", "<": "lt", "<=": "le"}
        return f"{names[self.sign]}({self.bound!r})"


def _order(value: Any, bound: float | str) -> int | None:
    """-1, 0 or 1 if the value is below, at or above the bound; None if they have no order."""
    if isinstance(bound, str):
        if not isinstance(value, str):
            return None
        return (value > bound) - (value < bound)
    number, limit = decimal_of(value), decimal_of(bound)
    if number is None or limit is None:
        return None
    return (number > limit) - (number < limit)


def decimal_of(value: Any) -> Decimal | None:
    """The number that a value of JSON is, or that it stands for as a text, as a `Decimal` does.

    None for any other value, and for NaN: JSON has none, but Python code may pass one.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, float) and not math.isnan(value):
        return Decimal(repr(float(value)))  # 1.1 is the number that is written so
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return Decimal(value)
    return None


def _plain_bound(bound: Any) -> int | float | str:
    """A bound as JSON has it, so that a stored rule compares as it did before."""
    if isinstance(bound, (str, date, int, float, Decimal)) and not isinstance(bound, datetime):
        plain = _plain_condition(bound)
        if _is_finite(plain) or (isinstance(plain, str) and isinstance(bound, (str, date))):
            return plain
    # Not a time of day: as text, one moment in two time zones has two orders.
    raise ConfigurationError(
        "`gt`, `ge`, `lt` and `le` take a number, a text or a date to compare an argument with; "
        f"found {shown(bound)}. For anything else, pass a function of the argument."
    )


def _plain_condition(condition: Any) -> Any:
    """A value to equal as JSON has it: rules judge arguments in this form, and are stored in it.

    Raises `ConfigurationError` for one that is no value of JSON: no argument would equal it, so
    that a `deny` would let every call run.
    """
    # As JSON, a regular expression is its text, which would count as a pattern of another kind.
    if isinstance(condition, re.Pattern) or opaque_text(condition) is not None:
        raise ConfigurationError(
            "A condition of a rule is a value of JSON, a pattern such as 'A*', `gt(100)` or the "
            f"like, or a function of the value; found {shown(cast('object', condition))}."
        )
    if isinstance(condition, Decimal):
        for number in (int, float):
            with suppress(ArithmeticError, ValueError):
                if decimal_of(number(condition)) == condition:
                    return number(condition)
    return jsonable(condition)


def gt(bound: Any) -> Compared:
    """A condition of a rule: the argument is greater than `bound`."""
    return Compared(">", bound)


def ge(bound: Any) -> Compared:
    """A condition of a rule: the argument is greater than `bound`, or equal to it."""
    return Compared(">=", bound)


def lt(bound: Any) -> Compared:
    """A condition of a rule: the argument is less than `bound`."""
    return Compared("<", bound)


def le(bound: Any) -> Compared:
    """A condition of a rule: the argument is less than `bound`, or equal to it."""
    return Compared("<=", bound)


class CallCondition(Struct, frozen=True):
    """A condition of a rule on the call itself, not on its arguments. Made by `call`.

    Every field that is not None must hold.
    """

    rescued: bool | None = None
    """Whether the call was read from the text of an answer (`ToolCall.is_rescued`)."""
    confidence: Compared | None = None
    """A comparison with how sure the model is of the call (`ToolCall.confidence`)."""
    after: Literal["untrusted"] | None = None
    """Whether the run has read an untrusted result before the call."""
    tainted: bool | Literal["values"] | None = None
    """Whether an argument comes from an untrusted result (`approval/provenance.py`)."""

    @property
    def looks(self) -> bool:
        """Whether it looks beyond the call, at what the run has read."""
        return self.after is not None or self.tainted is not None

    def holds(self, tool_call: ToolCall | None) -> bool | None:
        """Whether a call meets the condition; None if the call, or its confidence, is unknown.

        None, too, for a call that meets it as far as one can tell without looking beyond it.
        """
        holds = self.holds_apart(tool_call)
        if holds and self.looks:
            return None
        return holds

    def holds_apart(self, tool_call: ToolCall | None) -> bool | None:
        """`holds`, apart from what looks beyond the call."""
        if tool_call is None:
            return None
        if self.rescued is not None and tool_call.is_rescued != self.rescued:
            return False
        if self.confidence is None:
            return True
        return self.confidence(tool_call.confidence)

    def __repr__(self) -> str:
        conditions: list[str] = []
        if self.rescued is not None:
            conditions.append(f"rescued={self.rescued}")
        if self.confidence is not None:
            conditions.append(f"confidence={self.confidence!r}")
        if self.after is not None:
            conditions.append(f"after={self.after!r}")
        if self.tainted is not None:
            conditions.append(f"tainted={self.tainted!r}")
        return f"call({', '.join(conditions)})"


@checks_keywords
def call(
    *,
    rescued: bool | None = None,
    confidence: Compared | None = None,
    after: Literal["untrusted"] | None = None,
    tainted: bool | Literal["values"] | None = None,
) -> CallCondition:
    """A condition of a rule on the call itself: `ask("*", when=call(rescued=True))`.

    `rescued` is about calls that were read from the text of an answer: the model did not make them
    as structured calls, so the text may also repeat what the model has read.

    `confidence` compares the model's own measure, from 0 to 1: `call(confidence=lt(0.6))`. If it is
    unknown, `ask` and `deny` apply and `allow` does not. Of several conditions, all must hold.

    `after="untrusted"` is about calls that the run makes after it has read a result of an untrusted
    tool. `tainted=True` is about calls with an argument of which the value, or a part of 12 or more
    characters, occurs in such a result and not in the user's words. With `"values"`, of a text of
    more than 12 words only the addresses in it count, not its prose.
    """
    if rescued is None and confidence is None and after is None and tainted is None:
        raise ConfigurationError(
            "`call` takes a condition: `rescued=True`, `confidence=lt(0.6)`, "
            '`after="untrusted"` or `tainted=True`.'
        )
    if rescued is not None and not isinstance(cast("Any", rescued), bool):
        raise ConfigurationError(f"`rescued` is True or False, found {shown(rescued)}.")
    if tainted not in ("values", None) and not isinstance(cast("Any", tainted), bool):
        raise ConfigurationError(f"`tainted` is True, False or 'values', found {shown(tainted)}.")
    if after not in (None, "untrusted"):
        raise ConfigurationError(f"`after` is 'untrusted', found {shown(after)}.")
    if confidence is not None:
        _check_confidence(confidence)
    return CallCondition(rescued, confidence, after, tainted)


def _check_confidence(condition: Any) -> None:
    bound: Any = getattr(condition, "bound", None)
    if isinstance(condition, Compared) and _is_finite(bound) and 0 <= bound <= 1:
        return
    raise ConfigurationError(
        "`confidence` is a comparison with a number from 0 to 1, such as `lt(0.6)`; found "
        f"{shown(condition)}."
    )


class Rule(Struct, frozen=True):
    """A verdict on calls whose tool's name matches `tool` and whose arguments match `where`.

    The call itself must match `when`. Made by `allow`, `ask`, `deny` and `review`.
    """

    verdict: Verdict
    tool: str = "*"
    """A name, or a pattern: `*` is any text, `?` any character, `[ab]` one of these.

    Case-sensitive."""
    where: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """For each argument, a pattern for text, a value to equal, or a condition.

    A condition is `gt(100)`, `under("src")` or the like, or any function of the value."""
    reason: str = ""
    """Part of a denial's message to the model, of the question to a person, and shown to observers.
    """
    expires_s: float | None = None
    """For `ask`: seconds after which an unanswered question counts as denied."""
    when: CallCondition | Callable[..., Any] | None = None
    """A condition on the call itself, or None.

    A function looks beyond the call (`looks`): it takes a `Context`, and arguments by name."""
    by: Any = None
    """The reviewer, whose verdict is the rule's (see `review`); None for a fixed verdict."""
    timeout_s: float | None = None
    """The most seconds for the reviewer."""

    def __post_init__(self) -> None:
        tool: Any = self.tool
        if not isinstance(tool, str):  # users pass tools
            raise ConfigurationError(
                f"`{self.verdict}` takes a tool's name or a pattern, such as 'pay'; "
                f"found {shown(tool)}."
            )
        when: Any = self.when
        if callable(when):
            read_condition(when)  # raises for one that cannot be called
        elif when is not None and not isinstance(when, CallCondition):
            raise ConfigurationError(
                "`when` is a condition on the call, such as `call(rescued=True)`, or a function of "
                f"a `Context` and of arguments of the call; found {shown(when)}. A condition on an "
                "argument named `when` goes into `where`."
            )
        where: dict[str, Any] = {}
        for name, condition in self.where.items():
            if isinstance(condition, (Compared, Under)):
                where[name] = condition
            elif callable(condition):
                refuse_async(condition, f"The condition on `{name}`")
                refuse_other_arguments(condition, f"The condition on `{name}`", "the value")
                where[name] = condition
            else:
                where[name] = _plain_condition(condition)
        force_setattr(self, "where", where)

    def covers(self, tool: str, args: Mapping[str, Any], tool_call: ToolCall | None = None) -> bool:
        """Whether the rule applies to this call. In doubt, only `allow` does not.

        Without `tool_call`, a condition on the call itself is in doubt. One that looks beyond the
        call is always in doubt here; `may_cover` leaves it out.
        """
        return self.is_about(tool) and self._fits(tool, args, tool_call)

    def __call__(
        self, args: Mapping[str, Any], tool_call: ToolCall | None = None, *, tool: str = ""
    ) -> bool:
        """Whether a person is asked, for `require_confirmation=ask(amount=gt(100))`."""
        return self.verdict == "ask" and self._fits(tool, args, tool_call)

    @property
    def looks(self) -> bool:
        """Whether `when` or a reviewer looks beyond the call. The run records the answer."""
        if isinstance(self.when, CallCondition) and self.when.looks:
            return True
        return callable(self.when) or self.by is not None

    def may_cover(self, tool: str, args: Mapping[str, Any], tool_call: ToolCall) -> bool:
        """Whether the rule applies to this call if what looks beyond it says so."""
        if not self.is_about(tool) or not self._fits_arguments(tool, args):
            return False
        if isinstance(self.when, CallCondition):
            return self._in_doubt(self.when.holds_apart(tool_call))
        return True

    @property
    def condition(self) -> ConditionFunction | None:
        """The function in `when`, with what it takes; None if there is none."""
        if callable(self.when):
            return read_condition(self.when)
        return None

    @property
    def judges_paths(self) -> bool:
        """Whether a condition follows a path, so that it may hold at one time and not later."""
        return any(isinstance(condition, Under) for condition in self.where.values())

    def _fits(self, tool: str, args: Mapping[str, Any], tool_call: ToolCall | None) -> bool:
        return self._fits_call(tool_call) and self._fits_arguments(tool, args)

    def _fits_call(self, tool_call: ToolCall | None) -> bool:
        holds: bool | None = None
        if isinstance(self.when, CallCondition):
            holds = self.when.holds(tool_call)
        elif self.when is None:
            holds = True
        return self._in_doubt(holds)

    def _in_doubt(self, holds: bool | None) -> bool:
        """What holds, or in doubt the answer with which no call runs."""
        if holds is None:
            return self.verdict != "allow"
        return holds

    def _fits_arguments(self, tool: str, args: Mapping[str, Any]) -> bool:
        # A condition on an argument that is missing is not met.
        return all(
            name in args and self._fits_argument(tool, name, args[name]) for name in self.where
        )

    def _fits_argument(self, tool: str, name: str, value: Any) -> bool:
        with naming_failure(lambda: f"In a call of `{tool}`, the condition of {self} on `{name}`"):
            return _fits(name, self.where[name], value, careful=self.verdict == "allow")

    def is_about(self, tool: str) -> bool:
        """Whether the tool's name matches, whatever the arguments."""
        return fnmatchcase(tool, self.tool)

    def unmet(
        self, tool: str, args: Mapping[str, Any], tool_call: ToolCall | None = None
    ) -> list[str]:
        """The conditions that a call of a fitting tool does not meet, in words.

        As in an `allow`, a value that cannot be compared does not meet a condition.
        """
        unmet: list[str] = []
        for name, condition in self.where.items():
            if name not in args:
                unmet.append(f"{name} is missing")
                continue
            with naming_failure(lambda name=name: f"In a call of `{tool}`, the condition `{name}`"):
                is_met = _fits(name, condition, args[name], careful=True, warns=False)
            if not is_met:
                unmet.append(f"{name} is {shown(args[name], 80)}, not {shown(condition, 80)}")
        if isinstance(self.when, CallCondition) and not self.when.holds(tool_call):
            unmet.append(f"it does not meet when={self.when!r}")
        return unmet

    def __str__(self) -> str:
        conditions = [f", {name}={condition!r}" for name, condition in self.where.items()]
        if self.when is not None:
            conditions.append(f", when={self.when!r}")
        if self.by is None:
            name = self.verdict
        else:
            name = "review"
            conditions.append(f", by={shown(self.by)}")
        return f"{name}({self.tool!r}{''.join(conditions)})"


def allow(
    tool: str = "*",
    /,
    *,
    reason: str = "",
    where: Mapping[str, Any] | None = None,
    when: CallCondition | Callable[..., Any] | None = None,
    **args: Condition,
) -> Rule:
    """A rule for a `Policy`: calls that match run without a question.

    They do so even if their tool requires confirmation. `tool` is a name or a pattern, such as
    `"search*"`. `args` are conditions by argument: a value to equal, a pattern for text, a
    comparison such as `gt(100)`, `under("src")` for a path, or a sync function of the value.
    `where` is for arguments that are named like a keyword here. `when` is a condition on the call
    itself, `call(rescued=True)`, or a function, sync or async, that looks further: it takes the
    run's `Context` as `ctx`, and arguments of the call by their names. It is called once for each
    call, and its answer is recorded with the run.
    """
    return Rule("allow", tool, {**args, **(where or {})}, reason, when=when)


def ask(
    tool: str = "*",
    /,
    *,
    reason: str = "",
    expires_s: float | None = None,
    where: Mapping[str, Any] | None = None,
    when: CallCondition | Callable[..., Any] | None = None,
    **args: Condition,
) -> Rule:
    """A rule: calls that match (see `allow`) need a person's decision.

    After `expires_s` seconds without one they count as denied.
    """
    check_expiry(expires_s)
    return Rule("ask", tool, {**args, **(where or {})}, reason, expires_s, when)


def deny(
    tool: str = "*",
    /,
    *,
    reason: str = "",
    where: Mapping[str, Any] | None = None,
    when: CallCondition | Callable[..., Any] | None = None,
    **args: Condition,
) -> Rule:
    """A rule: calls that match (see `allow`) do not run; the model sees `reason`."""
    return Rule("deny", tool, {**args, **(where or {})}, reason, when=when)


def review(
    tool: str = "*",
    /,
    *,
    by: Any,
    timeout_s: float | None = 60.0,
    expires_s: float | None = None,
    where: Mapping[str, Any] | None = None,
    when: CallCondition | Callable[..., Any] | None = None,
    **args: Condition,
) -> Rule:
    """A rule: a reviewer says whether calls that match (see `allow`) run, are asked about, or not.

    `by` is a function of `call` (a `ToolCall`) and of `ctx`, sync or async, that returns a verdict,
    `"allow"`, `"ask"` or `"deny"`, or a pair of it and a reason. Or it is a program with an output
    `verdict`, and `reason` if it gives one; of the inputs `request`, `calls`, `tool` and `call`
    (texts) it gets those that it declares, as `Predict(Review)` does.

    Its verdict is that of the rule: another rule that denies the call is stricter. If it fails,
    answers anything else, or takes longer than `timeout_s`, a person is asked. It is asked once for
    a call, and what it spends counts in the run.
    """
    check_expiry(expires_s)
    if not callable(by) and not hasattr(by, "acall"):
        raise ConfigurationError(
            f"`by` of `review` is a function or a program that answers 'allow', 'ask' or 'deny'; "
            f"found {shown(by)}."
        )
    _check_inputs_of_reviewer(by)
    if timeout_s is not None and not (_is_finite(timeout_s) and timeout_s > 0):
        raise ConfigurationError(
            f"`timeout_s` is a number of seconds above 0, or None; found {timeout_s!r}."
        )
    conditions = {**args, **(where or {})}
    return Rule("ask", tool, conditions, "", expires_s, when, by, timeout_s)


def _check_inputs_of_reviewer(by: Any) -> None:
    """Raise `ConfigurationError` for a program that cannot be called: a person would be asked."""
    signature = getattr(by, "program_signature", None)
    for name, declared in getattr(signature, "input_fields", {}).items():
        if name not in INPUTS_OF_REVIEWER and declared.is_required():
            raise ConfigurationError(
                f"The reviewer {shown(by)} needs an input `{name}`. A reviewer gets "
                "`request`, `calls`, `tool` and `call`, as texts: declare those, as "
                "`Predict(Review)` does, or pass a function of `call` and `ctx`."
            )


def check_expiry(expires_s: Any) -> None:
    """Raise `ConfigurationError` for anything but a number of seconds, or None."""
    if expires_s is None or (_is_finite(expires_s) and expires_s > 0):
        return
    raise ConfigurationError(f"`expires_s` is a number of seconds above 0, found {expires_s!r}.")


class Policy(Struct, metaclass=CheckedStruct, frozen=True):
    """Rules for an agent (`ReAct(..., policy=)`) or for all programs (`configure(policy=)`).

    Their order does not matter. The strictest rule that matches a call wins: deny, then ask, then
    allow. `otherwise` is the verdict on calls that no rule matches (`"allow"`, `"ask"` or
    `"deny"`); None leaves those to the tool's own `require_confirmation`. If the settings and the
    agent both have a policy, the stricter verdict wins.

    A rule of an agent's own policy that names a tool, or an argument of it, that the agent does not
    have raises `ConfigurationError` when the agent is made. A rule of the settings' policy, and a
    pattern that fits no tool, cause a `UserWarning`. `loaded_later` declares names, or patterns of
    names, of tools that come later: from code, or from another program.

    A stored run keeps the policy of the settings that it was started with. If that has a lambda
    among its conditions, it needs a `name`: a policy of that name must be in force when the run
    resumes.
    """

    rules: Sequence[Rule]
    otherwise: Verdict | None = None
    name: str = ""
    around: Policy | None = None
    """A policy that holds, too; the stricter verdict wins."""
    loaded_later: Sequence[str] = ()
    """Names or patterns of tools that rules may name before a program has them."""

    def __post_init__(self) -> None:
        later: Any = self.loaded_later
        names: list[Any] = [None]
        if isinstance(later, Iterable) and not isinstance(later, str):
            names = list(cast("Iterable[Any]", later))
        if not all(isinstance(name, str) for name in names):
            raise ConfigurationError(
                f"`loaded_later` is a list of names of tools, found {shown(self.loaded_later)}."
            )
        force_setattr(self, "loaded_later", tuple(names))
        argument: Any = self.rules  # users pass anything
        rules: list[Any] = [argument]
        if isinstance(argument, Iterable):
            rules = list(cast("Iterable[Any]", argument))
        for rule in rules:
            # `rule is argument`: a single rule without its list is refused, too.
            if not isinstance(rule, Rule) or rule is argument:
                raise ConfigurationError(
                    "A policy is made of a list of `allow(...)`, `ask(...)` and `deny(...)`, "
                    f"found {shown(rule)}."
                )
        force_setattr(self, "rules", tuple(rules))  # a generator can be read only once
        if self.otherwise is not None and self.otherwise not in _STRICTNESS:
            raise ConfigurationError(
                f"`otherwise` is 'allow', 'ask', 'deny' or None, found {self.otherwise!r}."
            )

    @property
    def judges_calls(self) -> bool:
        """Whether a rule has a condition on the call itself."""
        if self.around is not None and self.around.judges_calls:
            return True
        return any(rule.when is not None for rule in self.rules)

    @property
    def looks(self) -> bool:
        """Whether a rule has a condition that looks beyond the call."""
        if self.around is not None and self.around.looks:
            return True
        return any(rule.looks for rule in self.rules)

    @property
    def judges_paths(self) -> bool:
        """Whether a rule has a condition that follows a path."""
        if self.around is not None and self.around.judges_paths:
            return True
        return any(rule.judges_paths for rule in self.rules)

    def for_server(self) -> Policy:
        """The policy for calls of tools that run in an MCP server."""
        if not self.judges_paths:
            return self
        around = self.around
        if around is not None:
            around = around.for_server()
        rules = [replace(rule, where=conditions_on_server(rule.where)) for rule in self.rules]
        return replace(self, rules=rules, around=around)

    def rule_for(
        self,
        tool: str,
        args: Mapping[str, Any],
        tool_call: ToolCall | None = None,
        *,
        looked: Sequence[Sequence[Rule]] | None = None,
    ) -> Rule | None:
        """The rule that applies to a call; None leaves the call to the tool's own rule.

        `looked` are the rules that apply by conditions that look beyond the call: those of this
        policy, then those of each policy around it. With None, these conditions are in doubt.
        """
        applying: Sequence[Rule] = ()
        if looked:
            applying, *looked = looked
        verdicts = [
            rule
            for rule in self.rules
            if (looked is None or not rule.looks) and rule.covers(tool, args, tool_call)
        ]
        verdicts += applying
        if not verdicts and self.otherwise is not None:
            verdicts = [Rule(self.otherwise)]
        if self.around is not None:
            rule = policy_rule(self.around, tool, args, tool_call, looked)
            if rule is not None:
                verdicts.append(rule)
        if verdicts:
            return strictest(verdicts)
        return None

    def together_with(self, other: Policy) -> Policy:
        """Both policies as one: the stricter verdict wins."""
        around = other
        if self.around is not None:
            around = self.around.together_with(other)
        return replace(self, around=around)


def rule_for(policies: Sequence[Policy], checked: CheckedCall) -> Rule | None:
    """The strictest rule of several policies for a call, or None if no policy has a rule for it.

    Raises `ConfigurationError` for a rule about an argument that its tool does not have: an `ask`
    would never ask.
    """
    tool, args, looked = checked.tool, checked.arguments.shown, checked.looked
    matching: list[Rule] = []
    for number, policy in enumerate(policies):
        for rule in policy.rules:
            if rule.tool == tool.name:
                check_arguments(rule, tool, args)
        applying = None if looked is None else looked.of_policy(number)
        in_force = policy.for_server() if is_of_server(tool) else policy
        rule = policy_rule(in_force, tool.name, args, checked.call, applying)
        if rule is not None:
            matching.append(rule)
    if not matching:
        return None
    return strictest(matching)


def declared_under(
    policies: Iterable[Policy], tools: Iterable[ProviderTool]
) -> tuple[ProviderTool, ...]:
    """The tools of a provider that policies let a program declare: those that none denies.

    The provider runs a call before it is known here, so a rule with a condition on a call is in
    doubt, as with a value that cannot be compared: `deny` applies, and the tool is not declared.

    Raises `ConfigurationError` if a policy asks: the call ends before a person could answer.
    """
    declared: list[ProviderTool] = []
    for tool in tools:
        rules = [_rule_in_doubt(policy, tool.name) for policy in policies]
        matching = [rule for rule in rules if rule is not None]
        rule = strictest(matching) if matching else None
        if rule is not None and rule.verdict == "ask":
            raise ConfigurationError(
                f"{rule} asks about `{tool.name}`, which the model's provider runs: its calls are "
                "over before they are known here, so no person can be asked first. Write "
                f"`deny({tool.name!r})`, which does not declare the tool; or leave it out of the "
                "rule, and write a tool of your own for what needs a decision."
            )
        if rule is None or rule.verdict == "allow":
            declared.append(tool)
    return tuple(declared)


def _rule_in_doubt(policy: Policy, name: str) -> Rule | None:
    """The strictest rule of a policy that may apply to some call of a tool."""
    matching: list[Rule] = []
    for one_policy in policies_in(policy):
        rules = [rule for rule in one_policy.rules if fnmatchcase(name, rule.tool)]
        # An `allow` with a condition leaves the other calls to `otherwise`.
        certain = [rule for rule in rules if not rule.where and rule.when is None]
        matching += [rule for rule in rules if rule.verdict != "allow" or rule in certain]
        if not certain and one_policy.otherwise is not None:
            matching.append(Rule(one_policy.otherwise))
    if not matching:
        return None
    return strictest(matching)


def check_rules(policy: Policy, tools: Iterable[ToolSpec], *, builtin: Iterable[str]) -> None:
    """Check the rules of a program's own policy against its tools.

    Raises `ConfigurationError` for a rule that names a tool or an argument that is not there, and
    warns of a pattern that fits no tool.
    """
    by_name = {tool.name: tool for tool in tools}
    names = {*by_name, *builtin}
    for rule in rules_without_tool(policy, names):
        if not has_wildcard(rule.tool):
            raise ConfigurationError(
                f"{rule} is about a tool that the program does not have: {_similar(rule, names)} "
                f"If it is loaded later: Policy(..., loaded_later=[{rule.tool!r}])."
            )
        _warn_of_rule(rule, names)
    checked: Policy | None = policy
    while checked is not None:
        for rule in checked.rules:
            if rule.tool in by_name:
                check_arguments(rule, by_name[rule.tool], {})
        checked = checked.around


def warn_of_rules(policy: Policy, names: Collection[str]) -> None:
    """Warn of the rules of a policy for many programs that fit none of these names."""
    for rule in rules_without_tool(policy, names):
        _warn_of_rule(rule, names)


def rules_without_tool(policy: Policy, names: Iterable[str]) -> Iterator[Rule]:
    """The rules of a policy that fit none of these names, nor a declared one."""
    known = {*names, *policy.loaded_later}
    for rule in policy.rules:
        is_declared = any(fnmatchcase(rule.tool, name) for name in policy.loaded_later)
        if rule.tool == "*" or is_declared:
            continue
        if not any(fnmatchcase(name, rule.tool) for name in known):
            yield rule
    if policy.around is not None:
        yield from rules_without_tool(policy.around, names)


def _warn_of_rule(rule: Rule, names: Iterable[str]) -> None:
    warnings.warn(
        f"{rule} of a policy fits no tool: {_similar(rule, names)} "
        f"If it is loaded later: Policy(..., loaded_later=[{rule.tool!r}]).",
        UserWarning,
        stacklevel=2,
    )


def _similar(rule: Rule, names: Iterable[str]) -> str:
    similar = nearest(rule.tool, names)
    if similar is not None:
        return f"did you mean `{similar}`?"
    return f"there are {', '.join(f'`{name}`' for name in sorted(names)[:20]) or 'none'}."


def policy_rule(
    policy: Policy,
    tool: str,
    args: Mapping[str, Any],
    tool_call: ToolCall | None,
    looked: Sequence[Sequence[Rule]] | None = None,
) -> Rule | None:
    """The rule of one policy for a call, or None."""
    # The method of a user's subclass may take fewer arguments.
    if policy.looks:
        return policy.rule_for(tool, args, tool_call, looked=looked)
    if policy.judges_calls:
        return policy.rule_for(tool, args, tool_call)
    return policy.rule_for(tool, args)


def policies_in(policy: Policy | None) -> Iterator[Policy]:
    """A policy, and each one around it."""
    while policy is not None:
        yield policy
        policy = policy.around


def check_arguments(rule: Rule, tool: ToolSpec, args: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for a rule about an argument that the tool does not have."""
    _check_lists(rule, tool)
    needed = [*rule.where]
    condition = rule.condition
    if condition is not None:
        needed += sorted(condition.required)
    if args.keys() >= {*needed}:
        return
    schema = tool.declaration["function"]["parameters"]
    known = {**schema.get("properties", {}), **args}
    unknown = [name for name in needed if name not in known]
    if unknown and not schema.get("additionalProperties"):
        names = ", ".join(f"`{name}`" for name in known) or "none"
        hint = f"It has: {names}."
        similar = nearest(unknown[0], known)
        if similar is not None:
            hint += f" Did you mean `{similar}`?"
        raise ConfigurationError(
            f"{rule} is about an argument `{unknown[0]}` that `{tool.name}` does not have. {hint}"
        )


def _check_lists(rule: Rule, tool: ToolSpec) -> None:
    """Raise `ConfigurationError` for a list to equal, if the argument is never a list."""
    for name, condition in rule.where.items():
        if not is_sequence(condition):
            continue
        properties = tool.declaration["function"]["parameters"].get("properties", {})
        kind = properties.get(name, {}).get("type")
        if kind in {"string", "integer", "number", "boolean"}:
            raise ConfigurationError(
                f"{rule} compares `{name}` of `{tool.name}`, a {kind}, with a list, which it "
                f"never equals. For one of several values: `{name}=lambda value: value in "
                f"{list(condition)!r}`, or a rule for each."
            )


def is_of_server(tool: ToolSpec) -> bool:
    """Whether a tool runs in an MCP server."""
    return getattr(tool, "mcp", None) is not None


def strictest(rules: Sequence[Rule]) -> Rule:
    """The strictest of several rules; the first of equally strict ones."""
    return max(rules, key=lambda rule: _STRICTNESS[rule.verdict])


class Grant(Struct, metaclass=CheckedStruct, frozen=True):
    """Consent to further calls of one tool in the same run: `question.approve(always=Grant(...))`.

    `args` selects the calls: `"same"` (the arguments of the question), `"any"`, or by argument
    patterns, values and `under("src")`. It ends with its run, after `calls` calls, at the time
    `until` (seconds since 1970), when it is revoked, or when the tool's definition changes. It
    applies to the program that asked, but not to an equal tool of an agent that this program calls
    as a tool.
    """

    args: Literal["same", "any"] | Mapping[str, Any] = "same"
    """The calls that it covers: those with the same arguments, any, or those whose arguments match
    these patterns, values and folders."""
    calls: int | None = None
    """The number of further calls; None for any number."""
    until: float | None = None
    """When the grant ends, in seconds since 1970; None for the end of the run."""
    tool: str = ""
    """The tool's name. This field and the next three are filled in when the grant is given."""
    fingerprint: str = ""
    inside: str = ""
    """The nested program that asked (`Question.inside`).

    Another agent's tool of the same name may do something else."""
    same: str = ""
    """The digest of the arguments in the question."""

    def __post_init__(self) -> None:
        args: Any = self.args
        if _is_by_name(args):  # read from JSON, perhaps
            args = {name: read_under(condition) for name, condition in args.items()}
            for name, condition in args.items():
                if not callable(condition):
                    args[name] = _plain_condition(condition)
            force_setattr(self, "args", args)
        has_valid_args = args in ("same", "any") or _is_by_name(args)
        has_valid_calls = self.calls is None or (type(self.calls) is int and self.calls > 0)
        if not has_valid_args or not has_valid_calls:
            raise ConfigurationError(
                "A grant is for the 'same' arguments, 'any', or patterns by name, "
                f"and for 1 or more calls; found {self!r}."
            )
        if self.until is not None and not _is_finite(self.until):
            raise ConfigurationError(
                "`until` of a grant is a time in seconds since 1970, or None; "
                f"found {self.until!r}."
            )
        for condition in self._conditions().values():
            if callable(condition) and not isinstance(condition, Under):
                raise ConfigurationError(
                    "A grant is stored with its run as JSON: "
                    "its arguments are patterns, values and `under(...)`, not functions."
                )

    @property
    def judges_paths(self) -> bool:
        """Whether it is for calls whose paths lie in a folder."""
        return any(isinstance(condition, Under) for condition in self._conditions().values())

    def _conditions(self) -> Mapping[str, Any]:
        if isinstance(self.args, str):
            return {}
        return self.args

    def covers(
        self,
        tool: str,
        fingerprint: str,
        args: Mapping[str, Any],
        *,
        inside: str = "",
        on_server: bool = False,
    ) -> bool:
        """Whether the grant applies to this call, apart from `calls` and `until`.

        `on_server` says that the tool runs in an MCP server.
        """
        if (tool, fingerprint, inside) != (self.tool, self.fingerprint, self.inside):
            return False
        if self.args == "any":
            return True
        if self.args == "same":
            return arguments_digest(args) == self.same
        return self.fits(args, on_server=on_server)

    def fits(self, args: Mapping[str, Any], *, on_server: bool) -> bool:
        """Whether the arguments fit the patterns, values and folders of the grant."""
        conditions = self._conditions()
        if on_server:
            conditions = conditions_on_server(conditions)
        return all(
            name in args and _fits(name, condition, args[name], careful=True)
            for name, condition in conditions.items()
        )


def describe_folders(grant: Grant) -> str:
    """The calls that a grant for folders covers, for a person who gives it: "with ..."."""
    limits: list[str] = []
    if not isinstance(grant.args, str):
        for name, condition in grant.args.items():
            folder = condition.folder
            if folder == ".":
                folder = "the working directory"
            limits.append(f"{one_line(reveal(name))} in {folder}")  # a server may name it
    return f"{' and '.join(limits)}, and any other arguments"


def arguments_digest(args: Mapping[str, Any]) -> str:
    """A digest of arguments that does not depend on their order."""
    return digest_of(dict(sorted(args.items())), 20)


def _is_by_name(args: Any) -> bool:
    if not isinstance(args, Mapping):
        return False
    return all(isinstance(name, str) for name in cast("Mapping[Any, Any]", args))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _fits(name: str, condition: Any, value: Any, *, careful: bool, warns: bool = True) -> bool:
    """Whether the value of an argument meets a condition.

    With `careful`, every element of a list must meet it, and a value that cannot be compared does
    not; without, one element is enough, and a value that cannot be compared does. `warns` of a
    pattern for a path, which is a mistake where the answer lets a call run.
    """
    if is_sequence(value) and _is_about_elements(condition):
        answers = [
            _fits(name, condition, element, careful=careful, warns=warns) for element in value
        ]
        if careful:
            return bool(answers) and all(answers)
        return any(answers)
    if callable(condition):
        answer: Any = refuse_awaitable(condition(value), "A condition of a rule")
        if answer is None:  # `Compared` or `Under` cannot judge this value
            return not careful
        return bool(answer)
    if isinstance(condition, str):
        if isinstance(value, str):
            if warns:
                _warn_of_pattern(name, condition, value)
            text = value
        else:
            text = json_text(value)
        return fnmatchcase(text, condition)
    number = decimal_of(condition)
    if number is not None:
        return number == decimal_of(value)
    # `1 == True` in Python, but not in JSON.
    is_same_kind = isinstance(condition, bool) == isinstance(value, bool)
    return is_same_kind and condition == value


def _is_about_elements(condition: Any) -> bool:
    """Whether a condition judges the elements of a list; functions and lists judge the whole."""
    if isinstance(condition, (Compared, Under)):
        return True
    return not callable(condition) and not is_sequence(condition)


def _warn_of_pattern(name: str, condition: str, value: str) -> None:
    """Warn of a pattern for a path: `src/../etc` fits `src/*`, and `./etc` does not fit `etc*`."""
    is_pattern = has_wildcard(condition) and condition != "*"
    if is_pattern and looks_like_path(value):
        warnings.warn(
            f"The pattern {condition!r} for `{name}` is compared with the text of a path: "
            "`src/../etc` fits 'src/*'. Write `under('src')`, which follows the path.",
            UserWarning,
            stacklevel=2,
        )


def has_wildcard(text: str) -> bool:
    """Whether a text is a pattern, not the name or the value itself."""
    return any(wildcard in text for wildcard in "*?[")
