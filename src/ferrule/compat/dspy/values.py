"""DSPy's values over the core's. `docs/coming-from/dspy.md` says what differs."""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false

from __future__ import annotations

import re
from typing import Any, ClassVar

from pydantic import model_serializer, model_validator

import ferrule
from ferrule.encoding.encode import jsonable
from ferrule.values import outcome
from ferrule.values.conversation.exchange import exchanges
from ferrule.values.outcome import recast

_FENCED = re.compile(r"(?s)^.*?```[^\n`]*\n(.*?)\s*```.*$")
"""A text with a fence: its first group is the code in it."""


class Example(ferrule.Prediction[Any]):
    _input_keys: set[str] | None = None

    def __init__(self, base: Any = None, /, **fields: Any) -> None:
        if base is None and isinstance(fields.get("base"), dict | Example):
            base = fields.pop("base")
        base = base or {}
        super().__init__(**{**base, **fields})
        self._input_keys = getattr(base, "_input_keys", None)

    def __setitem__(self, name, value):
        self._outputs[name] = value

    def __setattr__(self, name, value):
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self[name] = value

    def __delitem__(self, name):
        del self._outputs[name]

    def __eq__(self, other):
        # DSPy's loaded demos are dicts. Here they are examples, which equal these dicts.
        if isinstance(other, dict):
            return self._outputs == other
        return super().__eq__(other)

    def __hash__(self):
        # Equal examples have equal hashes; a list or dict in a field does not count.
        return hash(frozenset((name, _hash_of(value)) for name, value in self._outputs.items()))

    def __reduce__(self):
        return type(self), (dict(self._outputs),), dict(vars(self))

    def copy(self, **fields):
        return type(self)(self, **fields)

    def toDict(self):
        return jsonable(dict(self._outputs))

    def with_inputs(self, *names):
        example = self.copy()
        example._input_keys = set(names)
        return example

    def inputs(self):
        if self._input_keys is None:
            raise ValueError(
                "Inputs have not been set for this example. "
                "Use `example.with_inputs()` to set them."
            )
        return self.without(*(name for name in self if name not in self._input_keys))

    def labels(self):
        inputs = self.inputs()
        return type(self)({name: self[name] for name in self if name not in inputs})

    def without(self, *names):
        example = self.copy()
        example._outputs = {
            name: value for name, value in self._outputs.items() if name not in names
        }
        return example


def _hash_of(value: Any) -> int:
    try:
        return hash(value)
    except TypeError:
        return 0


class Prediction(Example):
    @classmethod
    def from_core(
        cls, prediction: ferrule.Prediction[Any], *, is_of_agent: bool = False
    ) -> Prediction:
        """Convert a prediction of the core.

        Its steps become a dict, whose observations are the values that tools returned. An agent's
        is empty without steps.
        """
        outputs = dict(prediction)
        if is_of_agent or prediction.trajectory.steps:
            steps = {name: _observed(value) for name, value in prediction.trajectory.items()}
            outputs = {"trajectory": steps, **outputs}
        return recast(prediction, cls, outputs)

    @classmethod
    def from_completions(cls, completions, signature=None):
        """A prediction with several answers: a list of their outputs, or a list for each output."""
        if isinstance(completions, dict):
            names = completions.keys()
            rows = [
                dict(zip(names, row, strict=True))
                for row in zip(*completions.values(), strict=True)
            ]
        else:
            rows = [dict(completion) for completion in completions]
        first, *others = rows
        return cls.of(first, signature=signature, others=[cls(**other) for other in others])

    def get_lm_usage(self):
        usage = super().get_lm_usage()
        return {_asked(name): tokens_of(of_model) for name, of_model in usage.by_model.items()}


def _asked(answered: str) -> str:
    """The name of the model that was asked, for the name with which its provider answered.

    A usage has only the second, such as `gpt-5-2025-08-07`; DSPy's has `openai/gpt-5`. Of a model
    that is not among the latest calls, the second stays.
    """
    for lm, _, response in reversed(exchanges):
        if getattr(response, "model", None) == answered:
            return lm.name
    return answered


def tokens_of(usage: ferrule.Usage) -> dict[str, int]:
    """A usage in OpenAI's form, as DSPy shows it."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }


class Completions(outcome.Completions[Any]):
    """Several answers: a list of their outputs, or a list for each output."""

    __slots__ = ("signature",)

    def __init__(self, completions, signature=None):
        super().__init__(Prediction.from_completions(completions).completions)
        self.signature = signature


def _observed(value: Any) -> Any:
    if isinstance(value, list):
        return [_observed(item) for item in value]
    returned = returned_value(getattr(value, "value", None))
    if returned is None:
        return value
    return returned


def returned_value(value: Any) -> Any:
    """What a direct call of a tool returns; None for an error of an MCP server."""
    if not isinstance(value, ferrule.mcp_bridge.MCPResult):
        return value
    if value.is_error:
        return None
    return value.value


class Code(ferrule.Type):
    code: str
    language: ClassVar[str] = "python"

    @classmethod
    def __class_getitem__(cls, language):
        members = {"language": language, "__module__": __name__}
        return type(f"Code_{language}", (cls,), members)

    @classmethod
    def description(cls):
        fence = f"```{cls.language.lower()} and ```"
        return f"Code in {cls.language}, as text; in an answer between {fence}."

    @model_serializer()
    def format(self) -> str:
        return self.code

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, data: Any) -> Any:
        text = data
        if isinstance(data, dict):
            text = data.get("code")
        if not isinstance(text, str):
            return data
        return {"code": _FENCED.sub(r"\1", text)}


class Image(ferrule.Image):
    def __init__(self, url=None, **more):
        if url:
            more["url"] = url
        super().__init__(**more)

    @classmethod
    def from_url(cls, url):
        return cls(url)


class ToolCalls(ferrule.ToolCalls):
    def format(self):
        return {"tool_calls": [{"name": call.name, "args": call.args} for call in self.tool_calls]}

    def serialize_model(self):
        results = {}
        if self.tool_call_results is not None:
            results = {"tool_call_results": self.tool_call_results.format()}
        return {**self.format(), **results}
