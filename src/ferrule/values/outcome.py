"""The outcome of a run: `Step`, `Trajectory`, `Prediction`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, methodcaller
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct
from msgspec.structs import replace

from ferrule.encoding.encode import json_text
from ferrule.encoding.pattern import pattern
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.content.convert import content_text
from ferrule.values.conversation.exchange import Usage
from ferrule.values.display import Displayed
from ferrule.values.log import Log
from ferrule.values.typed import S, Typed

if TYPE_CHECKING:
    from ferrule.values.calls.tool_calls import ToolCalls
    from ferrule.values.conversation.history import History
    from ferrule.values.conversation.message import Messages

_KEYS = ("thought", "tool_name", "tool_args", "observation")
_KEY = pattern(rf"({'|'.join(_KEYS)})_(0|[1-9][0-9]{{0,8}})")


class _FrozenFields(dict[str, Any]):
    """The `__dict__` of a model that is built at each access. Setting a field raises, because the change would be lost."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self:
            raise AttributeError(
                f"the field is frozen; use `it.model_copy(update={{{name!r}: ...}})`",
            )
        super().__setitem__(name, value)  # a cached property

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class Observation(str):
    """The text of a call's result that the model saw. `value` is the tool's own return value; None after a replay."""

    __slots__ = ("value",)
    value: Any

    def __new__(cls, text: str, value: Any = None) -> Self:
        """The text, and the tool's value."""
        made = super().__new__(cls, text)
        made.value = value
        return made


class Step(Struct, frozen=True):
    """One round of an agent: the model's thought, its calls, and their results in the same order."""

    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()

    def entry(self, key: str) -> Any:
        """One of `thought`, `tool_name`, `tool_args`, `observation`; all but the thought are lists if the step had several calls."""
        if key == "thought":
            return self.thought
        read = _OF_CALL.get(key, _observation)
        found: Sequence[Any] = self.calls if read is not _observation else self.results
        if len(found) == 1:
            return read(found[0])
        # A step without a call (an answer that could not be parsed) still has its four entries.
        return list(map(read, found)) or (None if key != "tool_args" else {})


def _observation(result: ToolResult) -> Observation:
    return Observation(content_text(result.content), result.value)


_OF_CALL: dict[str, Callable[[Any], Any]] = {
    "tool_name": attrgetter("name"),
    "tool_args": attrgetter("args"),
}


class Trajectory(Displayed, Mapping[str, Any]):
    """The steps of a run, also readable as DSPy's mapping: `thought_0`, `tool_name_0`, `tool_args_0`, `observation_0`, `thought_1`, ..."""

    __slots__ = ("steps",)

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps: Log[Step] = steps if type(steps) is Log else Log(steps)
        """The steps in order."""

    def then(self, step: Step) -> Self:
        """A trajectory with one more step."""
        return type(self)(self.steps.then(step))

    def kept_by(self, found: Mapping[str, Any]) -> Trajectory:
        """The steps whose keys a mapping keeps, with its thoughts and observations. Its other entries, as summaries, become steps."""
        if isinstance(found, Trajectory):
            return found
        from ferrule.values.calls.call import (
            ToolResult,
        )  # late: few agents have an override that returns a dict

        steps: dict[str, Step] = {}
        for key, value in found.items():
            place = _KEY.fullmatch(key)
            if place is None or int(place[2]) >= len(self.steps):
                steps[key] = Step("", (), (ToolResult(key, str(value)),))
                continue
            step = steps.setdefault(place[2], self.steps[int(place[2])])
            if value != step.entry(place[1]):
                if place[1] == "thought":
                    steps[place[2]] = replace(step, thought=str(value))
                elif place[1] == "observation" and len(step.results) == 1:
                    steps[place[2]] = replace(
                        step,
                        results=(replace(step.results[0], content=str(value)),),
                    )
        return Trajectory(steps.values())

    def __getitem__(self, key: str) -> Any:
        # Callers may pass any object to `in`. `thought_7` is a key, but `thought_07` is not.
        found = _KEY.fullmatch(key) if isinstance(key, str) else None
        if found is None or int(found[2]) >= len(self.steps):
            raise KeyError(key)
        return self.steps[int(found[2])].entry(found[1])

    def __iter__(self) -> Iterator[str]:
        return (f"{key}_{i}" for i in range(len(self.steps)) for key in _KEYS)

    def __len__(self) -> int:
        return len(_KEYS) * len(self.steps)

    def __eq__(self, other: object) -> bool:
        # By keys and values: call ids may differ between equal runs over different protocols.
        return isinstance(other, Mapping) and dict(self) == dict(other)  # pyright: ignore[reportUnknownArgumentType]

    __hash__ = None  # pyright: ignore[reportAssignmentType]  compared by content

    def __repr__(self) -> str:
        names = ", ".join(
            "+".join(call.name for call in step.calls) or "no call" for step in self.steps
        )
        return f"<Trajectory of {len(self.steps)} step{'' if len(self.steps) == 1 else 's'}{': ' if names else ''}{names}>"

    def display_rows(self) -> Iterator[tuple[str, str]]:
        """Each step: its thought, its calls, their results."""
        for i, step in enumerate(self.steps):
            called = [
                f"{call.name}({', '.join(f'{name}={json_text(value)}' for name, value in call.args.items())})"
                for call in step.calls
            ]
            results = [f"→ {content_text(result.content)}" for result in step.results]
            yield f"step_{i}", "\n".join(filter(None, [step.thought, *called, *results]))


class _Further:
    """An attribute of predictions other than their outputs. An output of the same name hides it."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, prediction: Any, owner: type) -> Any:
        if prediction is None:
            return self
        outputs = prediction._outputs  # noqa: SLF001  of this module's own class
        return outputs[self._name] if self._name in outputs else self._read(prediction)


class Prediction(Displayed, Typed[S], Mapping[str, Any]):
    """Typed outputs by name, as attributes and as items: `Prediction(answer=42).answer`.

    Its keys are the outputs only. `outputs`, `trajectory`, `usage`, `cost`, `messages` and `reason`
    are further attributes, unless an output has that name. `outputs` is an instance of the
    signature's class, for type checkers: `prediction.outputs.answer`. An output named like a method
    of a mapping (`items`, `keys`, ...) is read as an item.
    """

    __slots__ = (
        "_calls",
        "_history",
        "_messages",
        "_others",
        "_outputs",
        "_reason",
        "_signature",
        "_trajectory",
        "_usage",
    )

    if TYPE_CHECKING:
        outputs: S
        """The outputs as attributes of an instance of the signature, without inputs; a plain object if no signature is known."""
        trajectory: Trajectory
        """The steps of the run."""
        usage: Usage
        """Tokens and cost of all model calls of the program and of the programs inside it; `usage.by_model` has them by model."""
        cost: float | None
        """The cost of these model calls in US dollars; None if the cost of any call is unknown."""
        messages: Messages
        """The conversation up to and including this answer."""
        history: History
        """The conversation as a `History`, to pass to the next call. Always the same object, so that results can be added to it."""
        completions: Completions[S]
        """All answers to the request, this one first: several with `n`, otherwise one."""
        tool_calls: ToolCalls
        """The model's calls that were not run (`auto_execute_tools=False`)."""
        reason: str | None
        """Why the run ended before the model finished (`max_iters`, or a limit); None for a normal end."""
    else:
        outputs = _Further(lambda made: _as_instance(made._signature, made._outputs))  # noqa: SLF001  of this class
        trajectory, messages, reason = (
            _Further(attrgetter(name)) for name in ("_trajectory", "_messages", "_reason")
        )
        usage = _Further(methodcaller("get_lm_usage"))
        cost = _Further(lambda made: made.get_lm_usage().cost)
        history = _Further(methodcaller("_make_history"))
        completions = _Further(lambda made: Completions((made, *getattr(made, "_others", ()))))
        tool_calls = _Further(methodcaller("_make_tool_calls"))

    def __init__(self, /, **outputs: Any) -> None:
        self._outputs = outputs
        self._signature: Any = None
        self._usage: Usage | Callable[[], Usage] = _NO_USAGE
        self._messages: Messages | None = None
        self._reason: str | None = None
        self._calls: tuple[ToolCall, ...] = ()
        self._history: History | None = None

    @classmethod
    def of(
        cls,
        outputs: Mapping[str, Any],
        *,
        trajectory: Trajectory | None = None,
        messages: Messages | None = None,
        reason: str | None = None,
        calls: Sequence[ToolCall] = (),
        signature: Any = None,
        others: Iterable[Prediction[S]] = (),
    ) -> Self:
        """A prediction with attributes besides its outputs."""
        made = cls(**outputs)
        if trajectory is not None:
            made._trajectory = trajectory
        made._messages = messages
        made._reason = reason
        made._calls = tuple(calls)
        made._signature = signature
        if others:
            made._others = tuple(others)
        return made

    def counted(self, usage: Usage | Callable[[], Usage]) -> Self:
        """The prediction with its usage, or with a function that computes the usage when needed. The driver calls it at a program's end.

        Returns a copy if the prediction has a usage already, from an inner program or another run:
        the original keeps that usage.
        """
        made = self if self._usage is _NO_USAGE else self._twin()
        made._usage = usage  # noqa: SLF001  of this class
        return made

    def _twin(self) -> Self:
        made = type(self).__new__(type(self))
        for name in (*Prediction.__slots__, *getattr(self, "__dict__", ())):
            if hasattr(self, name):
                setattr(made, name, getattr(self, name))
        return made

    def __getitem__(self, key: str) -> Any:
        return self._outputs[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __getattr__(self, name: str) -> Any:
        if (
            name == "_trajectory"
        ):  # an empty one is made when it is first read: most predictions get theirs from the program
            self._trajectory = Trajectory()
            return self._trajectory
        if not name.startswith("_") and name in self._outputs:
            return self._outputs[name]
        known = ", ".join(self._outputs) if not name.startswith("_") else ""
        raise AttributeError(
            f"`{name}` is not an output of this prediction; its outputs are: {known or 'none'}.",
        )

    def _make_tool_calls(self) -> ToolCalls:
        from ferrule.values.calls.tool_calls import ToolCalls

        return ToolCalls(tool_calls=list(self._calls))

    def _make_history(self) -> History:
        if self._history is None:
            from ferrule.values.conversation.history import History, after_system

            self._history = History(messages=after_system(self._messages or ()))
        return self._history

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prediction):
            return NotImplemented
        return self._outputs == other._outputs and self._trajectory == other._trajectory

    __hash__ = None  # pyright: ignore[reportAssignmentType]  compared by content

    def toDict(self) -> dict[str, Any]:  # noqa: N802  DSPy's name
        """The outputs as a plain dict."""
        return dict(self._outputs)

    def to_json(self) -> str:
        """The outputs as JSON text."""
        return json_text(self._outputs)

    def get_lm_usage(self) -> Usage:
        """`usage`, under DSPy's name."""
        if not isinstance(self._usage, Usage):
            self._usage = self._usage()
        return self._usage

    def __reduce__(self) -> tuple[Any, ...]:
        further = {
            name: getattr(self, f"_{name}", ())
            for name in ("trajectory", "messages", "reason", "calls", "others")
        }
        return (_again, (self._outputs, self.get_lm_usage(), further))

    def display_rows(self) -> Iterator[tuple[str, Any]]:
        """The outputs; then, if there are any, the reason for an early end, the steps, and the tokens."""
        further = {
            "reason": self._reason,
            "trajectory": self._trajectory if self._trajectory.steps else None,
        }
        spent = self.get_lm_usage()
        usage = {
            "usage": f"{spent.total_tokens} tokens in {spent.calls} model calls"
            if spent.calls
            else None,
        }
        yield from self._outputs.items()
        yield from (
            (name, value)
            for name, value in {**further, **usage}.items()
            if value is not None and name not in self._outputs
        )

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._outputs.items())
        return f"{type(self).__name__}({inside})"


class Completions(Sequence["Prediction[S]"]):
    """The answers to one request, as predictions: `completions[0]`, or `completions.answer` for the list of one output's values."""

    __slots__ = ("_predictions",)

    def __init__(self, predictions: Iterable[Prediction[S]]) -> None:
        self._predictions = tuple(predictions)

    def __getitem__(self, key: Any) -> Any:
        found: Any = self._predictions if not isinstance(key, str) else None
        return [each[key] for each in self._predictions] if found is None else found[key]

    def __len__(self) -> int:
        return len(self._predictions)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._predictions[0]:
            raise AttributeError(
                f"`{name}` is not an output of these completions; their outputs are: {', '.join(self._predictions[0])}.",
            )
        return self[name]

    def __repr__(self) -> str:
        return f"Completions({list(self._predictions)!r})"


_NO_USAGE = Usage()


def _as_instance(signature: Any, outputs: Mapping[str, Any]) -> Any:
    """The outputs as an instance of their signature. No validator runs: outputs were checked one by one, and the inputs are missing."""
    if signature is None:
        return SimpleNamespace(**outputs)
    named = _FrozenFields(
        {name: outputs[name] for name in signature.plan.outputs if name in outputs},
    )
    made = signature.__new__(signature)
    made.__setstate__(
        {
            "__dict__": named,
            "__pydantic_fields_set__": set(named),
            "__pydantic_extra__": None,
            "__pydantic_private__": None,
        },
    )
    return made


def recast(found: Any, kind: Any, outputs: Mapping[str, Any]) -> Any:
    """A prediction of the class `kind` with other outputs, and with the steps, messages, calls and tokens of `found`."""
    further = {
        name: getattr(found, f"_{name}")
        for name in ("trajectory", "messages", "reason", "calls", "signature")
    }
    made = kind.of(
        outputs,
        others=[recast(each, kind, dict(each)) for each in getattr(found, "_others", ())],
        **further,
    )
    return made.counted(getattr(found, "_usage"))  # noqa: B009  of this module's own class


def _again(outputs: dict[str, Any], usage: Usage, further: dict[str, Any]) -> Prediction:
    return Prediction.of(outputs, **further).counted(usage)
