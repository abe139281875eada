"""The tree of errors: as drawn, so it is; and each error is a good traveller."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re

import pytest

from ferrule import errors
from ferrule.acts import Suspended

CLASSES = {
    name: each
    for name, each in vars(errors).items()
    if inspect.isclass(each) and issubclass(each, BaseException) and name == each.__name__
}

MADE = [
    errors.FerruleError("plain"),
    errors.SignatureError("no arrow"),
    errors.MissingKeyError("OPENAI_API_KEY is not set"),
    errors.UnknownToolError("ad", ["add", "sub"]),
    errors.ToolArgumentsError("add", [("a", "is missing"), ("", "too many")], "add(a: int)"),
    errors.ToolTimeoutError("slow", 1.5, abandoned=True),
    errors.ToolExecutionError("boom"),
    errors.ToolRetry("use metres"),
    errors.ToolCallError(
        "invalid_tool_call",
        "no name",
        raw={"args": {}},
        index=2,
        tool="add",
        reason="missing_key",
    ),
    errors.AdapterParseError(
        "ChatAdapter",
        "junk",
        [("answer", "is missing")],
        parsed={"thought": "t"},
        absent=["answer"],
        code="missing_required_outputs",
    ),
    errors.RateLimitError("slow down", provider="p", status=429, request_id="r", retry_after_s=2.0),
    errors.MissingContentError("no choices", raw={"choices": []}),
    errors.ScriptError("drifted"),
    errors.TooManyFaultsError(["one", "two"]),
    errors.MaxTurnsReachedError(3, []),
    errors.ReplayMismatchError("0.1", "a", "b"),
    errors.DecisionError("no such question"),
    errors.ConfirmationRequired("Sure?", confirmation_id="c1", context={"a": 1}),
    errors.ConfirmationRejected("no", confirmation_id="c1"),
    Suspended(["q1", "q2"]),
]


def drawn() -> dict[str, tuple[str, ...]]:
    """Each class of the docstring's drawing with its bases, the parent first."""
    [drawing] = re.findall(r"```\n(.*?)```", errors.__doc__ or "", re.DOTALL)
    above: list[tuple[int, str]] = []
    found: dict[str, tuple[str, ...]] = {}
    for line in filter(str.strip, drawing.splitlines()):
        name, others = re.match(r"[│├└─ ]*(\w+)(?: \(([\w, ]+)\))?", line).groups()
        depth = line.index(name)
        while above and above[-1][0] >= depth:
            above.pop()
        bases = [above[-1][1]] if above else []
        bases += others.split(", ") if others else []
        assert name not in found, f"{name} is drawn twice"
        found[name] = tuple(bases) or ("Exception",)
        above.append((depth, name))
    return found


def test_the_tree_in_the_docstring_is_the_tree_of_classes():
    """The drawing is what a reader learns the errors from."""
    assert drawn() == {
        name: tuple(base.__name__ for base in each.__bases__) for name, each in CLASSES.items()
    }


def test_every_error_says_in_its_docstring_what_it_means():
    assert [name for name, each in CLASSES.items() if not each.__dict__.get("__doc__")] == []


def test_only_suspension_escapes_except_exception():
    """Architecture: suspension unwinds through a user's `except Exception`."""
    assert not issubclass(Suspended, Exception)
    assert all(issubclass(each, Exception) for each in CLASSES.values())


def test_a_builtin_base_is_a_builtin():
    """What the drawing has in parentheses is what a user who knows no ferrule would catch."""
    names = {base for bases in drawn().values() for base in bases} - CLASSES.keys()
    assert all(hasattr(builtins, name) for name in names)


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))],
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("error", MADE, ids=lambda each: type(each).__name__)
def test_an_error_survives_copying_and_pickling_with_all_it_carries(error, again):
    """A process pool, a test runner and a queue pickle errors; Python's own way fails for an
    `__init__` of one's own.
    """
    error.add_note("seen in a test")
    twin = again(error)
    assert type(twin) is type(error)
    assert (str(twin), twin.args, vars(twin)) == (str(error), error.args, vars(error))


def test_a_subclass_with_a_signature_of_its_own_travels_too():
    """Users derive from `ToolRetry` and the like."""
    twin = pickle.loads(pickle.dumps(OwnRetry("km", 3)))
    assert (str(twin), twin.unit, twin.value) == ("3 km is too far", "km", 3)


class OwnRetry(errors.ToolRetry):
    def __init__(self, unit: str, value: int) -> None:
        self.unit = unit
        self.value = value
        super().__init__(f"{value} {unit} is too far")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            errors.UnknownToolError("ad", ["add", "sub"]),
            "There is no tool `ad`. Available tools: `add`, `sub`.",
        ),
        (errors.UnknownToolError("ad", []), "There is no tool `ad`. Available tools: none."),
        (errors.ToolTimeoutError("t", 2.0), "`t` did not finish within 2 s."),
        (
            errors.RateLimitError("slow down", provider="p", status=429, request_id="r"),
            "p: slow down (status 429, request r)",
        ),
        (
            errors.MaxTurnsReachedError(3, []),
            "No answer after 3 turns; calls still wanted: none. Raise `max_turns`.",
        ),
        (
            errors.ToolArgumentsError(
                "add",
                [("a", "is missing"), ("", "too many")],
                "add(a: int)",
            ),
            "Call to `add` was not run. Fix and call again:\n- a: is missing\n- too many\nExpected: add(a: int)",
        ),
    ],
    ids=["unknown", "unknown_without_tools", "timeout", "lm", "turns", "arguments"],
)
def test_an_error_says_what_was_tried_and_found(error, says):
    """What a person reads is checked word for word."""
    assert str(error) == says


def test_of_many_problems_of_a_call_the_message_names_the_first_and_counts_the_others():
    """A model reads it, in each later request, too: 50 problems with long lists of choices were 30
    kB.
    """
    error = errors.ToolArgumentsError(
        "buy",
        [(f"items.{i}", "expected one of " + "x" * 500) for i in range(50)],
        "{...}",
    )
    lines = str(error).splitlines()
    assert lines[1] == "- items.0: expected one of " + "x" * 500
    assert (lines[-2], lines[-1]) == ("- and 35 more", "Expected: {...}")
    assert len(str(error)) < 9_000
    assert len(error.problems) == 50
    assert str(errors.ToolArgumentsError("buy", [("a", "x" * 20_000)])).endswith("x" * 20_000), (
        "the first is always named"
    )


class Unspeakable:
    def __repr__(self) -> str:
        raise KeyError("no")


def test_what_was_found_is_shown_shortened_and_whatever_it_is():
    """An object whose `repr` raises must not hide the error that tells of it."""
    assert errors.shown("ab") == "'ab'"
    assert errors.shown("x" * 500) == "'" + "x" * 198 + "… (502 characters)"
    assert errors.shown(Unspeakable()).startswith("<")
    assert "Unspeakable object" in errors.shown(Unspeakable())


def test_an_async_tool_in_sync_code_may_be_caught_as_a_value_error():
    with pytest.raises(ValueError, match="await"):
        raise errors.AsyncToolError("await it")


def test_running_out_of_turns_is_a_runtime_error_too():
    assert isinstance(errors.MaxTurnsReachedError(3, []), RuntimeError)


CODES = """
FerruleError ferrule | SignatureError signature | InputError input | ConfigurationError configuration | MissingKeyError missing_key
ToolError tool | ToolDefinitionError tool_definition | DuplicateToolError duplicate_tool | ToolLoadError tool_load
UnknownToolError unknown_tool | ToolArgumentsError tool_arguments | AsyncToolError async_tool | ToolTimeoutError tool_timeout
ToolExecutionError tool_execution | ToolRetry tool_retry | ToolStop tool_stop
BoundaryError boundary | ToolCallError tool_call | AdapterParseError adapter_parse
LMError lm | UnavailableError unavailable retryable | RateLimitError rate_limit retryable | AuthenticationError authentication
RefusalError refusal | ContextOverflowError context_overflow | BadRequestError bad_request | MissingContentError missing_content
ConstraintError constraint
MCPError mcp | MCPConnectionError mcp_connection retryable | MCPTimeoutError mcp_timeout retryable | MCPProtocolError mcp_protocol
MCPToolError mcp_tool
ScriptError script | RunError run | TooManyFaultsError too_many_faults | MaxTurnsReachedError max_turns_reached
LimitReachedError limit_reached | ReplayMismatchError replay_mismatch | DecisionError decision | StoreError store | UnknownOutcomeError unknown_outcome
RunTakenError run_taken | RunCancelledError run_cancelled | ConfirmationRequired confirmation_required | ConfirmationRejected confirmation_rejected
"""
"""Programs may hold on to these: a change breaks them."""
ARGUMENTS = {
    "UnknownToolError": ("a", []), "ToolArgumentsError": ("a", []), "ToolTimeoutError": ("a", 1.0), "ToolCallError": ("tool_call", "m"),
    "AdapterParseError": ("ChatAdapter", "", []), "TooManyFaultsError": ([],), "MaxTurnsReachedError": (1, []),
    "LimitReachedError": ("cost", 1.0), "ReplayMismatchError": ("0", "a", "b"),
}  # fmt: skip


def test_every_class_has_its_stable_code_and_says_whether_to_try_again():
    """DSPy's errors have both."""
    found = [line.split() for line in CODES.replace("\n", " | ").split("|") if line.strip()]
    assert {name: (code, *rest) for name, code, *rest in found} == {
        name: (
            each.code,
            *(["retryable"] if each(*ARGUMENTS.get(name, ("m",))).is_retryable else []),
        )
        for name, each in CLASSES.items()
    }
    codes = [each.code for each in CLASSES.values()]
    assert len(set(codes)) == len(codes)


def test_a_users_own_error_has_a_code_too():
    assert OwnRetry.code == OwnRetry("km", 3).code == "own_retry"


@pytest.mark.parametrize(
    ("facts", "is_retryable"),
    [
        ({"phase": "call", "may_have_run": True}, False),
        ({"phase": "call", "may_have_run": False}, True),
        ({"phase": "list"}, True),
    ],
)
def test_a_call_to_a_server_is_tried_again_only_if_it_has_certainly_not_run(facts, is_retryable):
    assert errors.MCPTimeoutError("late", **facts).is_retryable is is_retryable
    assert errors.MCPError("busy", status=503, **facts).is_retryable is is_retryable
    assert not errors.MCPProtocolError("no", code=-32602, **facts).is_retryable


def test_an_error_of_json_rpc_keeps_its_number():
    assert (
        errors.MCPProtocolError("no", code=-32602).code,
        errors.MCPProtocolError("no").code,
    ) == (-32602, "mcp_protocol")


@pytest.mark.parametrize(
    ("fault", "shown"),
    [("no such tool", "no such tool. Raise `limits="), ("Fix it.", "Fix it. Raise `limits=")],
)
def test_the_last_fault_is_a_sentence_of_its_own(fault: str, shown: str):
    """It ran into the advice."""
    assert f"The last fault: {shown}" in str(errors.TooManyFaultsError([fault]))
