"""The outcome of a run: `Step`, `Trajectory`, `Prediction`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, methodcaller
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule.encoding.encode import json_text
from ferrule.encoding.pattern import pattern
from ferrule.errors import checks_keywords
from ferrule.record import CheckedStruct
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.convert import content_text
from ferrule.values.conversation.exchange import Usage
from ferrule.values.conversation.history import History, after_system
from ferrule.values.display import Displayed
from ferrule.values.log import Log
from ferrule.values.provider_tools import Citation, ProviderCall
from ferrule.values.typed import S, Typed

if TYPE_CHECKING:
    from ferrule.values.conversation.exchange import Response
    from ferrule.values.conversation.message import Messages

_KEYS = ("thought", "tool_name", "tool_args", "observation")
_KEY = pattern(rf"({'|'.join(_KEYS)})_(0|[1-9][0-9]{{0,8}})")
"""A key of a trajectory. `thought_7` is one, `thought_07` is not."""


class _FrozenFields(dict[str, Any]):
    """The `__dict__` of `Prediction.outputs`, which is built at each access.

    Setting a field raises, because the change would be lost.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self:
            raise AttributeError(
                f"the field is frozen; use `it.model_copy(update={{{name!r}: ...}})`"
            )
        # A new name is the value of a cached property.
        super().__setitem__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class Observation(str):
    """The text of a call's result that the model saw.

    `value` is the tool's own return value; None after a replay.
    """

    __slots__ = ("value",)
    value: Any

    def __new__(cls, text: str, value: Any = None) -> Self:
        """The text, and the tool's value."""
        observation = super().__new__(cls, text)
        observation.value = value
        return observation


class Step(Struct, metaclass=CheckedStruct, frozen=True):
    """One round of an agent: the model's thought, its calls, and their results in call order."""

    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    said: str = ""
    """A message to the run (`Run.say`). A step that has one has nothing else."""
    provider_calls: tuple[ProviderCall, ...] = ()
    """The calls that the model's provider ran before the model made `calls` or answered."""
    citations: tuple[Citation, ...] = ()
    """The sources that the model's text cites."""

    def with_provider_part(self, response: Response | None) -> Step:
        """The step with what the model's provider did while it answered."""
        if response is None or not (response.provider_calls or response.citations):
            return self
        return replace(self, provider_calls=response.provider_calls, citations=response.citations)

    @property
    def has_provider_part(self) -> bool:
        """Whether the model's provider ran tools of its own in this step, or cited sources."""
        return bool(self.provider_calls or self.citations)

    def entry(self, key: str) -> Any:
        """One of `thought`, `tool_name`, `tool_args`, `observation`.

        All but the thought are lists if the step had several calls. A step without a call (an
        answer that could not be parsed, a message to the run) still has its four entries; a message
        is its observation.
        """
        match key:
            case "thought":
                return self.thought
            case "tool_name":
                entries: list[Any] = [call.name for call in (*self.provider_calls, *self.calls)]
            case "tool_args":
                entries = [call.args for call in (*self.provider_calls, *self.calls)]
                if not entries:
                    return {}
            case _ if self.said:
                return self.said
            case _:
                entries = [
                    Observation(content_text(result.content), result.value)
                    for result in self.results
                ]
                seen = [Observation(call.result or "") for call in self.provider_calls]
                entries = [*seen, *entries]
        if not entries:
            return None
        if len(entries) == 1:
            return entries[0]
        return entries


class Trajectory(Displayed, Mapping[str, Any]):
    """The steps of a run, also readable as DSPy's mapping.

    Its keys are `thought_0`, `tool_name_0`, `tool_args_0`, `observation_0`, `thought_1`, ...
    """

    __slots__ = ("steps",)

    @checks_keywords
    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps: Log[Step] = steps if type(steps) is Log else Log(steps)
        """The steps in order."""

    def then(self, step: Step) -> Self:
        """A trajectory with one more step."""
        return type(self)(self.steps.then(step))

    def kept_by(self, entries: Mapping[str, Any]) -> Trajectory:
        """The steps whose keys a mapping keeps, with its thoughts and observations.

        The mapping is a shortened copy of this trajectory. Its other entries, as summaries, become
        steps of their own.
        """
        if isinstance(entries, Trajectory):
            return entries
        steps: dict[str, Step] = {}
        for key, value in entries.items():
            position = self._position(key)
            if position is None:
                steps[key] = Step(results=(ToolResult(key, str(value)),))
                continue
            entry_name, index = position
            step = steps.setdefault(str(index), self.steps[index])
            if value == step.entry(entry_name):
                continue
            if step.said:
                if entry_name == "observation":
                    steps[str(index)] = replace(step, said=str(value))
            elif entry_name == "thought":
                steps[str(index)] = replace(step, thought=str(value))
            elif entry_name == "observation" and len(step.results) == 1:
                result = replace(step.results[0], content=str(value))
                steps[str(index)] = replace(step, results=(result,))
        return Trajectory(steps.values())

    def _position(self, key: object) -> tuple[str, int] | None:
        """The entry and the index of the step that a key names; None if it names none."""
        # Callers may pass any object to `in`.
        match = None
        if isinstance(key, str):
            match = _KEY.fullmatch(key)
        if match is None:
            return None
        index = int(match[2])
        if index >= len(self.steps):
            return None
        return match[1], index

    def __getitem__(self, key: str) -> Any:
        position = self._position(key)
        if position is None:
            raise KeyError(key)
        entry_name, index = position
        return self.steps[index].entry(entry_name)

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self.steps)):
            for key in _KEYS:
                yield f"{key}_{index}"

    def __len__(self) -> int:
        return len(_KEYS) * len(self.steps)

    def __eq__(self, other: object) -> bool:
        # By keys and values: call ids may differ between equal runs over different protocols.
        if not isinstance(other, Mapping):
            return False
        return dict(self) == dict(cast("Mapping[Any, Any]", other))

    # Not hashable, because it is compared by content.
    __hash__ = None

    def __repr__(self) -> str:
        names = [_name_of(step) for step in self.steps]
        if len(names) == 1:
            count = "1 step"
        else:
            count = f"{len(names)} steps"
        if not names:
            return f"<Trajectory of {count}>"
        return f"<Trajectory of {count}: {', '.join(names)}>"

    def display_rows(self) -> Iterator[tuple[str, str]]:
        """Each step: its thought, its calls, their results."""
        for index, step in enumerate(self.steps):
            lines = [step.thought] if step.thought else []
            if step.said:
                lines.append(f"A message to the run: {step.said}")
            lines += [f"{call.name} (by the provider): {call.args}" for call in step.provider_calls]
            for call in step.calls:
                arguments = [f"{name}={json_text(value)}" for name, value in call.args.items()]
                lines.append(f"{call.name}({', '.join(arguments)})")
            lines += [f"→ {content_text(result.content)}" for result in step.results]
            yield f"step_{index}", "\n".join(lines)


def _name_of(step: Step) -> str:
    if step.said:
        return "message"
    return "+".join(call.name for call in (*step.provider_calls, *step.calls)) or "no call"


class _Attribute:
    """An attribute of predictions other than their outputs.

    An output of the same name hides it: the author of a signature may call an output `reason`, and
    `prediction.reason` is then this output.
    """

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, prediction: Any, owner: type) -> Any:
        if prediction is None:
            return self
        outputs = prediction._outputs  # noqa: SLF001  of this module's own class
        if self._name in outputs:
            return outputs[self._name]
        return self._read(prediction)


class Prediction(Displayed, Typed[S], Mapping[str, Any]):
    """Typed outputs by name, as attributes and as items: `Prediction(answer=42).answer`.

    Its keys are the outputs only. `outputs`, `trajectory`, `usage`, `cost`, `messages`, `citations`
    and `reason` are further attributes, unless an output has that name. `outputs` is an instance of
    the signature's class, for type checkers: `prediction.outputs.answer`. An output named like a
    method of a mapping (`items`, `keys`, ...) is read as an item.
    """

    __slots__ = (
        "_calls",
        "_entries",
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
        """The outputs as attributes of an instance of the signature, without inputs.

        A plain object if no signature is known.
        """
        trajectory: Trajectory
        """The steps of the run."""
        usage: Usage
        """Tokens and cost of all model calls of the program and of the programs inside it.

        `usage.by_model` has them by model.
        """
        cost: float | None
        """The cost of these model calls in US dollars; None if the cost of any call is unknown."""
        messages: Messages
        """The conversation up to and including this answer."""
        history: History
        """The conversation as a `History`, to pass to the next call.

        Always the same object, so that results can be added to it.
        """
        completions: Completions[S]
        """All answers to the request, this one first: several with `n`, otherwise one."""
        tool_calls: ToolCalls
        """The model's calls that were not run (`auto_execute_tools=False`)."""
        citations: tuple[Citation, ...]
        """The sources that the model cited in the run, by its provider's own tools."""
        reason: str | None
        """Why the run ended before the model finished (`max_iters`, or a limit).

        None for a normal end.
        """
    else:
        outputs = _Attribute(methodcaller("_outputs_as_instance"))
        trajectory = _Attribute(attrgetter("_trajectory"))
        usage = _Attribute(methodcaller("get_lm_usage"))
        cost = _Attribute(methodcaller("_cost"))
        messages = _Attribute(attrgetter("_messages"))
        history = _Attribute(methodcaller("_get_history"))
        completions = _Attribute(methodcaller("_get_completions"))
        tool_calls = _Attribute(methodcaller("_get_tool_calls"))
        citations = _Attribute(methodcaller("_get_citations"))
        reason = _Attribute(attrgetter("_reason"))

    def __init__(self, /, **outputs: Any) -> None:
        self._outputs = outputs
        self._signature: Any = None
        self._usage: Usage | Callable[[], Usage] = _NO_USAGE
        self._messages: Messages | None = None
        self._reason: str | None = None
        self._calls: tuple[ToolCall, ...] = ()
        self._history: History | None = None
        self._others: tuple[Prediction[S], ...] = ()
        self._entries: Sequence[Any] | None = None

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
        prediction = cls(**outputs)
        if trajectory is not None:
            prediction._trajectory = trajectory
        prediction._messages = messages
        prediction._reason = reason
        prediction._calls = tuple(calls)
        prediction._signature = signature
        prediction._others = tuple(others)
        return prediction

    def counted(
        self, usage: Usage | Callable[[], Usage], entries: Sequence[Any] | None = None
    ) -> Self:
        """The prediction with its usage, or with a function that computes the usage when needed.

        The driver calls it at a program's end. Returns a copy if the prediction has a usage
        already, from an inner program or another run: the original keeps that usage.

        `entries` are those of the program in the journal, if it made calls; None if unknown.
        Conditions on calls (`ferrule.cases`) read them: a trajectory lacks the calls of programs
        that were called as tools.
        """
        if self._usage is _NO_USAGE:
            prediction = self
        else:
            prediction = self._shallow_copy()
        prediction._usage = usage  # noqa: SLF001  of this class
        prediction._entries = entries  # noqa: SLF001  of this class
        return prediction

    def _shallow_copy(self) -> Self:
        # Subclasses may have attributes in a `__dict__`. `copy.copy` would go through `__reduce__`,
        # which computes the usage.
        copied = type(self).__new__(type(self))
        for name in (*Prediction.__slots__, *getattr(self, "__dict__", ())):
            if hasattr(self, name):
                setattr(copied, name, getattr(self, name))
        return copied

    def __getitem__(self, key: str) -> Any:
        return self._outputs[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __getattr__(self, name: str) -> Any:
        # Called only for an attribute that is not set. Most predictions get their trajectory from
        # the program; for the others, an empty one is made here when it is first read.
        if name == "_trajectory":
            self._trajectory = Trajectory()
            return self._trajectory
        known = "none"
        if not name.startswith("_"):
            if name in self._outputs:
                return self._outputs[name]
            known = ", ".join(self._outputs) or "none"
        raise AttributeError(
            f"`{name}` is not an output of this prediction; its outputs are: {known}."
        )

    # -- attributes other than the outputs, which the class declares above

    def _outputs_as_instance(self) -> Any:
        """The outputs as an instance of their signature.

        No validator runs: outputs were checked one by one, and the inputs are missing.
        """
        signature = self._signature
        if signature is None:
            return SimpleNamespace(**self._outputs)
        fields = _FrozenFields(
            {name: self._outputs[name] for name in signature.plan.outputs if name in self._outputs}
        )
        instance = signature.__new__(signature)
        # Pydantic's own method for unpickling: it sets the fields without checking them.
        instance.__setstate__(
            {
                "__dict__": fields,
                "__pydantic_fields_set__": set(fields),
                "__pydantic_extra__": None,
                "__pydantic_private__": None,
            }
        )
        return instance

    def _cost(self) -> float | None:
        return self.get_lm_usage().cost

    def _get_completions(self) -> Completions[S]:
        return Completions((self, *self._others))

    def _get_tool_calls(self) -> ToolCalls:
        return ToolCalls(tool_calls=list(self._calls))

    def _get_citations(self) -> tuple[Citation, ...]:
        return tuple([citation for step in self._trajectory.steps for citation in step.citations])

    def _get_history(self) -> History:
        if self._history is None:
            self._history = History(messages=after_system(self._messages or ()))
        return self._history

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prediction):
            return NotImplemented
        return self._outputs == other._outputs and self._trajectory == other._trajectory

    # Not hashable, because it is compared by content.
    __hash__ = None

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
        # Without the signature, whose class may not exist where the prediction is loaded.
        attributes = {
            "trajectory": self._trajectory,
            "messages": self._messages,
            "reason": self._reason,
            "calls": self._calls,
            "others": self._others,
        }
        return (_unpickle, (self._outputs, self.get_lm_usage(), attributes))

    def display_rows(self) -> Iterator[tuple[str, Any]]:
        """The outputs; then, if any, the reason for an early end, the steps, and the tokens."""
        yield from self._outputs.items()
        further: dict[str, Any] = {}
        if self._reason is not None:
            further["reason"] = self._reason
        if self._trajectory.steps:
            further["trajectory"] = self._trajectory
        usage = self.get_lm_usage()
        if usage.calls:
            further["usage"] = f"{usage.total_tokens} tokens in {usage.calls} model calls"
        for name, value in further.items():
            if name not in self._outputs:
                yield name, value

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._outputs.items())
        return f"{type(self).__name__}({inside})"


class Completions(Sequence["Prediction[S]"]):
    """The answers to one request, as predictions.

    `completions[0]` is a prediction, `completions.answer` the list of one output's values.
    """

    __slots__ = ("_predictions",)

    def __init__(self, predictions: Iterable[Prediction[S]]) -> None:
        self._predictions = tuple(predictions)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return [prediction[key] for prediction in self._predictions]
        predictions: Any = self._predictions  # `key` may be an index or a slice
        return predictions[key]

    def __len__(self) -> int:
        return len(self._predictions)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._predictions[0]:
            known = ", ".join(self._predictions[0])
            raise AttributeError(
                f"`{name}` is not an output of these completions; their outputs are: {known}."
            )
        return self[name]

    def __repr__(self) -> str:
        return f"Completions({list(self._predictions)!r})"


_NO_USAGE = Usage()


def made_by(prediction: Any) -> tuple[Sequence[Any] | None, Trajectory]:
    """The journal entries of a prediction's calls (`Prediction.counted`), and its trajectory.

    Outputs may hide the attributes of these names.
    """
    return prediction._entries, prediction._trajectory  # noqa: SLF001


def recast(prediction: Any, kind: Any, outputs: Mapping[str, Any]) -> Any:
    """A prediction of the class `kind` with other outputs.

    Its steps, messages, calls and tokens are those of `prediction`.
    """
    # The underscored names, because an output may hide the attributes.
    recast_prediction = kind.of(
        outputs,
        trajectory=prediction._trajectory,  # noqa: SLF001
        messages=prediction._messages,  # noqa: SLF001
        reason=prediction._reason,  # noqa: SLF001
        calls=prediction._calls,  # noqa: SLF001
        signature=prediction._signature,  # noqa: SLF001
        others=[recast(other, kind, dict(other)) for other in prediction._others],  # noqa: SLF001
    )
    return recast_prediction.counted(prediction._usage, prediction._entries)  # noqa: SLF001


def _unpickle(outputs: dict[str, Any], usage: Usage, attributes: dict[str, Any]) -> Prediction:
    return Prediction.of(outputs, **attributes).counted(usage)
