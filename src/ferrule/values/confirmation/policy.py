"""Rules that decide about calls in a person's stead: a `Policy` made beforehand, a `Grant` given along with a decision.

In: a tool's name and the arguments that would run, as JSON. Out: allow, ask, or deny. Whatever cannot be compared counts against the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Literal, cast

from ferrule.errors import ConfigurationError, shown
from ferrule.values.encoding.encode import json_bytes, json_text, jsonable
from ferrule.values.record import Record, field

Verdict = Literal["allow", "ask", "deny"]
_STRICTNESS: dict[Verdict, int] = {"allow": 0, "ask": 1, "deny": 2}


class Compared(Record):
    """A condition on a number (or on text, by its order): `gt(100)`. Called with a value; None where the two cannot be compared."""

    sign: Literal[">", ">=", "<", "<="]
    bound: Any

    def __call__(self, value: Any) -> bool | None:
        """Whether the value is on the right side of the bound."""
        numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (value, self.bound))
        if not numbers and not (isinstance(value, str) and isinstance(self.bound, str)):
            return None
        above, equal = value > self.bound, value == self.bound
        if not (above or equal or value < self.bound):
            return None  # not a number
        return equal if equal and "=" in self.sign else (above if ">" in self.sign else not above) and not equal


def gt(bound: Any) -> Compared:
    """Greater than."""
    return Compared(">", bound)


def ge(bound: Any) -> Compared:
    """Greater than, or equal."""
    return Compared(">=", bound)


def lt(bound: Any) -> Compared:
    """Less than."""
    return Compared("<", bound)


def le(bound: Any) -> Compared:
    """Less than, or equal."""
    return Compared("<=", bound)


class Rule(Record):
    """What holds for calls of tools named like `tool` whose arguments fit `where`. Made by `allow`, `ask` and `deny`."""

    verdict: Verdict
    tool: str = "*"
    """A name, or a pattern: `*` any text, `?` any character, `[ab]` one of these. Upper and lower case differ."""
    where: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Argument name to a pattern for text, a value to be equal to, or a condition (`gt(100)`, any function of the value)."""
    reason: str = ""
    """Told to the model with a denial, and to observers."""
    expires_s: float | None = None
    """Of `ask`: seconds after which an unanswered question counts as denied."""

    def covers(self, tool: str, args: Mapping[str, Any]) -> bool:
        """Whether the rule speaks of this call. A doubt makes `allow` silent, and the others speak."""
        if not fnmatchcase(tool, self.tool):
            return False
        return _all_fit(self.where, args, careful=self.verdict == "allow")

    def __call__(self, args: Mapping[str, Any]) -> bool:
        """The rule as `require_confirmation=ask(amount=gt(100))`: whether a person is asked."""
        return self.verdict == "ask" and _all_fit(self.where, args, careful=False)

    def __str__(self) -> str:
        where = "".join(f", {name}={wanted!r}" for name, wanted in self.where.items())
        return f"{self.verdict}({self.tool!r}{where})"


def allow(tool: str = "*", /, *, reason: str = "", where: Mapping[str, Any] | None = None, **args: Any) -> Rule:
    """Such calls run without asking, even of a tool that requires confirmation. `where` holds arguments named like a keyword of this."""
    return Rule("allow", tool, {**args, **(where or {})}, reason)


def ask(
    tool: str = "*", /, *, reason: str = "", expires_s: float | None = None, where: Mapping[str, Any] | None = None, **args: Any
) -> Rule:
    """A person is asked about such calls. After `expires_s` seconds without a decision they count as denied."""
    if expires_s is not None and not expires_s > 0:
        msg = f"`expires_s` is a number of seconds above 0, found {expires_s!r}."
        raise ConfigurationError(msg)
    return Rule("ask", tool, {**args, **(where or {})}, reason, expires_s)


def deny(tool: str = "*", /, *, reason: str = "", where: Mapping[str, Any] | None = None, **args: Any) -> Rule:
    """Such calls do not run; the model is told."""
    return Rule("deny", tool, {**args, **(where or {})}, reason)


class Policy(Record):
    """Rules for an agent (`ReAct(..., policy=)`) or for everything (`configure(policy=)`). Their order does not matter.

    Of the rules that cover a call the strictest counts: deny, then ask, then allow. `otherwise` is for calls that none covers; None leaves
    those to the tool's own `require_confirmation`. With a policy in the settings and one of the agent, the stricter verdict counts.
    """

    rules: Sequence[Rule]
    otherwise: Verdict | None = None

    def __post_init__(self) -> None:
        for each in cast("Sequence[Any]", self.rules):
            if not isinstance(each, Rule):
                msg = f"A policy is made of `allow(...)`, `ask(...)` and `deny(...)`, found {shown(each)}."
                raise ConfigurationError(msg)
        if self.otherwise is not None and self.otherwise not in _STRICTNESS:
            msg = f"`otherwise` is 'allow', 'ask', 'deny' or None, found {self.otherwise!r}."
            raise ConfigurationError(msg)

    def rule_for(self, tool: str, args: Mapping[str, Any]) -> Rule | None:
        """The rule that counts for a call; None leaves it to the tool."""
        found = [each for each in self.rules if each.covers(tool, args)]
        if found:
            return strictest(found)
        return Rule(self.otherwise) if self.otherwise is not None else None


def rule_for(policies: Sequence[Policy], tool: str, args: Mapping[str, Any]) -> Rule | None:
    """The strictest rule of several policies for a call; None where none has a rule for it."""
    found = [rule for each in policies if (rule := each.rule_for(tool, args)) is not None]
    return strictest(found) if found else None


def strictest(rules: Sequence[Rule]) -> Rule:
    """The rule that counts among several: of two equally strict ones the first."""
    return max(rules, key=lambda each: _STRICTNESS[each.verdict])


class Grant(Record):
    """Consent to further calls of one tool in the same run: `question.approve(always=Grant(...))`. Given by nobody else, and revocable.

    It ends with its run, with `calls`, with `until`, when it is revoked, or when the tool's definition changes. It holds in the program
    that asked, and not for an equal tool of an agent that is called as a tool there.
    """

    args: Literal["same", "any"] | Mapping[str, Any] = "same"
    """Which calls: those with the very same arguments, all of them, or those whose arguments fit these patterns and values."""
    calls: int | None = None
    """For how many further calls; None for any number."""
    until: float | None = None
    """Until when, in seconds since 1970; None until the run ends."""
    tool: str = ""
    """The tool's name; filled in when it is given, as are the next three."""
    fingerprint: str = ""
    inside: str = ""
    """Which nested program it was given in (`Question.inside`): another agent's tool of the same name may do something else."""
    same: str = ""
    """The digest of the arguments it was given on."""

    def __post_init__(self) -> None:
        patterns = isinstance(self.args, Mapping) and all(isinstance(name, str) for name in cast("Mapping[Any, Any]", self.args))
        if not (patterns or self.args in {"same", "any"}) or (self.calls is not None and self.calls < 1):
            msg = f"A grant is for the 'same' arguments, 'any', or patterns by name, and for 1 or more calls; found {self!r}."
            raise ConfigurationError(msg)
        if isinstance(self.args, Mapping) and any(callable(each) for each in self.args.values()):
            msg = "A grant is kept with its run as JSON: its arguments are patterns and values, no functions."
            raise ConfigurationError(msg)

    def covers(self, tool: str, fingerprint: str, args: Mapping[str, Any], *, inside: str = "") -> bool:
        """Whether it speaks of this call, leaving aside how often and how long."""
        if (tool, fingerprint, inside) != (self.tool, self.fingerprint, self.inside):
            return False
        if self.args == "any":
            return True
        return arguments_digest(args) == self.same if self.args == "same" else _all_fit(self.args, args)


def arguments_digest(args: Mapping[str, Any]) -> str:
    """Names a set of arguments, whatever their order."""
    return sha256(json_bytes(dict(sorted(args.items())))).hexdigest()[:20]


def _all_fit(where: Mapping[str, Any], args: Mapping[str, Any], *, careful: bool = True) -> bool:
    return all(name in args and _fits(wanted, args[name], careful=careful) for name, wanted in where.items())


def _fits(wanted: Any, value: Any, *, careful: bool) -> bool:
    """Whether a value is as wanted. `careful`: all of a list must be, and what cannot be compared is not."""
    if _is_list(value) and (type(wanted) is Compared or not (callable(wanted) or _is_list(wanted))):
        each = [_fits(wanted, one, careful=careful) for one in value]
        return bool(each) and all(each) if careful else any(each)
    if callable(wanted):
        answer: Any = wanted(value)
        return not careful if answer is None else bool(answer)
    if isinstance(wanted, str):
        return fnmatchcase(value if isinstance(value, str) else json_text(value), wanted)
    return jsonable(wanted) == value and isinstance(wanted, bool) == isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
