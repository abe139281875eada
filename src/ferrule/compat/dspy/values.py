"""DSPy's values, settings and models, each in a few lines over the core. `docs/coming-from/dspy.md` says what differs."""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# pyright: reportReturnType=false

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from traceback import format_exception
from types import SimpleNamespace
from typing import Any, ClassVar

from pydantic import model_serializer, model_validator

import ferrule
from ferrule import settings as core
from ferrule.encoding.encode import jsonable
from ferrule.models.wires.any_answer import response_of
from ferrule.models.wires.openai_chat import render
from ferrule.values.conversation.exchange import exchanges
from ferrule.values.outcome import recast

_WITHOUT_EFFECT = {
    "cache",
    "callbacks",
    "engine",
    "finetuning_model",
    "launch_kwargs",
    "provider",
    "train_kwargs",
    "use_developer_role",
}
_DEFAULTS = {
    "num_threads": 8,
    "warn_on_type_mismatch": True,
    "max_errors": 10,
    "track_usage": False,
    "rm": None,
    "trace": None,
}

# -- values
# -----------------------------------------------------------------------------------------------------------


class Example(ferrule.Prediction[Any]):
    _input_keys: set[str] | None = None

    def __init__(self, base: Any = None, /, **fields: Any) -> None:
        given = (
            fields.pop("base", {})
            if base is None and isinstance(fields.get("base"), dict | Example)
            else base or {}
        )
        super().__init__(**{**given, **fields})
        self._input_keys = getattr(given, "_input_keys", None)

    __setitem__ = lambda self, name, value: self._outputs.__setitem__(name, value)
    __setattr__ = lambda self, name, value: (
        object.__setattr__ if name.startswith("_") else type(self).__setitem__
    )(self, name, value)
    __delitem__ = lambda self, name: self._outputs.pop(name) and None
    __reduce__ = lambda self: (type(self), (dict(self._outputs),), dict(vars(self)))
    copy = lambda self, **fields: type(self)(self, **fields)
    labels = lambda self: type(self)(
        {name: self[name] for name in self if name not in self.inputs()},
    )
    toDict = lambda self: jsonable(dict(self._outputs))

    def with_inputs(self, *names):
        (made := self.copy())._input_keys = set(names)
        return made

    def inputs(self):
        if self._input_keys is None:
            raise ValueError(
                "Inputs have not been set for this example. Use `example.with_inputs()` to set them.",
            )
        return self.without(*(name for name in self if name not in self._input_keys))

    def without(self, *names):
        (made := self.copy())._outputs = {
            name: value for name, value in self._outputs.items() if name not in names
        }
        return made


class Prediction(Example):
    @classmethod
    def dressed(cls, found: ferrule.Prediction[Any]) -> Prediction:
        """Convert a prediction of the core: the steps become a dict, whose observations are the values that tools returned."""
        steps = (
            {"trajectory": {name: _observed(value) for name, value in found.trajectory.items()}}
            if found.trajectory.steps
            else {}
        )
        return recast(found, cls, {**steps, **found})

    def get_lm_usage(self):
        used = super().get_lm_usage()
        tokens = {
            "prompt_tokens": used.input_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.total_tokens,
        }
        return {getattr(core.current().lm, "name", "lm"): tokens} if used.calls else {}


def _observed(value: Any) -> Any:
    found = _plain(getattr(value, "value", None))
    return (
        [_observed(each) for each in value]
        if isinstance(value, list)
        else value
        if found is None
        else found
    )


_plain = lambda found: (
    found if not isinstance(found, ferrule.MCPResult) else None if found.is_error else found.value
)
"""The value that a direct call of the tool returns; None for an error."""


class Code(ferrule.Type):
    code: str
    language: ClassVar[str] = "python"

    __class_getitem__ = classmethod(
        lambda cls, language: type(
            f"Code_{language}",
            (cls,),
            {"language": language, "__module__": __name__},
        ),
    )
    description = classmethod(
        lambda cls: (
            f"Code in {cls.language}, as text; in an answer between ```{cls.language.lower()} and ```."
        ),
    )

    @model_serializer()
    def format(self) -> str:
        return self.code

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, data: Any) -> Any:
        text = data.get("code") if isinstance(data, dict) else data
        return (
            {"code": re.sub(r"(?s)^.*?```[^\n`]*\n(.*?)\s*```.*$", r"\1", text)}
            if isinstance(text, str)
            else data
        )


class Image(ferrule.Image):
    from_url = classmethod(lambda cls, url: cls(url))
    __init__ = lambda self, url=None, **more: ferrule.Image.__init__(
        self,
        **({"url": url} if url else {}),
        **more,
    )


class ToolCalls(ferrule.ToolCalls):
    format = lambda self: {
        "tool_calls": [{"name": call.name, "args": call.args} for call in self.tool_calls],
    }


class AdapterParseError(ferrule.AdapterParseError):
    adapter_name, lm_response = (
        property(lambda self: self.adapter),
        property(lambda self: self.text),
    )
    parsed_result = property(lambda self: self.parsed)

    def __init__(
        self,
        adapter_name: str,
        signature: Any,
        lm_response: str,
        message: str | None = None,
        parsed_result: Any = None,
    ) -> None:
        super().__init__(
            adapter_name,
            lm_response,
            [("", message or "does not fit")],
            parsed=parsed_result,
            signature=signature,
        )
        text = f"Adapter {adapter_name} failed to parse the LM response. \n\nLM Response: {lm_response} \n\nExpected to find output fields"
        self.args = (
            f"{message or ''}\n\n{text} in the LM response: [{', '.join(signature.output_fields)}]".strip(),
        )


class ContextWindowExceededError(ferrule.ContextOverflowError):
    def __init__(
        self,
        *,
        model: str | None = None,
        message: str = "Context window exceeded",
        **details: Any,
    ) -> None:
        super().__init__(f"[{model}] {message}" if model else message, **details)


@contextmanager
def under_dspys_names():
    """A block that raises the two errors with other constructors as DSPy's: the same objects, with their data and tracebacks."""
    names: dict[Any, Any] = {
        ferrule.AdapterParseError: AdapterParseError,
        ferrule.ContextOverflowError: ContextWindowExceededError,
    }
    try:
        yield
    except ferrule.FerruleError as error:
        error.__class__ = names.get(type(error), type(error))
        raise


def format_error_for_lm(error: BaseException, *, traceback_frames: int = 0) -> str:
    return (
        "\n" + "".join(format_exception(error, limit=traceback_frames)).strip()
        if traceback_frames
        else str(error)
    )


without_rollout = lambda settings: {
    name: each for name, each in settings.items() if name != "rollout_id"
}  # it only varied the cache

# -- settings, callbacks, models
# --------------------------------------------------------------------------------------


class Settings:
    """The core's settings, and DSPy's other settings in the core's `extra`."""

    configure = staticmethod(lambda **changes: ferrule.configure(**_of_core(changes)))
    context = staticmethod(lambda **changes: ferrule.context(**_of_core(changes)))
    __getattr__ = lambda self, name: (
        self.others()[name] if name in self.others() else getattr(core.current(), name)
    )
    get = __getitem__ = lambda self, name, default=None: getattr(self, name, default)
    others = staticmethod(lambda: {**_DEFAULTS, **core.current().extra, "callbacks": _callbacks()})


def _of_core(changes: dict[str, Any]) -> dict[str, Any]:
    here, extra = (
        core.current(),
        {name: value for name, value in changes.items() if not hasattr(core.current(), name)},
    )
    known = {
        name: observers(value) if name == "callbacks" else value
        for name, value in changes.items()
        if name not in extra
    }
    return {
        **known,
        **({"max_workers": extra["num_threads"]} if "num_threads" in extra else {}),
        "extra": {**here.extra, **extra},
    }


settings = Settings()


class BaseCallback:
    """Override its hooks: `on_module_start(call_id, instance, inputs)`, `on_lm_end(call_id, outputs, exception)`, ..."""


observers = lambda callbacks: [
    Observer(each) if isinstance(each, BaseCallback) else each for each in callbacks
]
_callbacks = lambda: [
    each.callback if isinstance(each, Observer) else each for each in core.current().callbacks
]


class Observer:
    """Calls a callback's hooks with the arguments that DSPy passes."""

    def __init__(self, callback: BaseCallback) -> None:
        self.callback, self.tools = callback, dict[str, Any]()

    def __call__(self, event: ferrule.Event) -> None:
        match event:
            case ferrule.RunStarted(program=program, inputs=inputs):
                self.tools.update(getattr(program, "tools", {}))
                self._call(event, "module_start", instance=program, inputs=dict(inputs))
            case ferrule.RunFinished(prediction=found, error=error):
                self._call(event, "module_end", outputs=found, exception=error)
            case ferrule.ModelCalled(request=request, lm=lm):
                self._call(
                    event,
                    "adapter_format_end",
                    outputs=_body(request)["messages"],
                    exception=None,
                )
                self._call(
                    event,
                    "lm_start",
                    instance=lm,
                    inputs={"prompt": None, **_body(request)},
                )
            case ferrule.ModelAnswered(response=response, error=error):
                self._call(
                    event,
                    "lm_end",
                    outputs=response and _outputs(response),
                    exception=error,
                )
            case ferrule.CallStarted(call=call):
                tool = self.tools.get(call.name, SimpleNamespace(name=call.name))
                self._call(event, "tool_start", instance=tool, inputs=call.args)
            case ferrule.CallFinished(result=result):
                self._call(
                    event,
                    "tool_end",
                    outputs=None if result.error else _plain(result.value),
                    exception=result.error,
                )

    def _call(self, event: ferrule.Event, hook: str, **given: Any) -> None:
        getattr(self.callback, f"on_{hook}", lambda **_: None)(call_id=event.span_id, **given)


def _body(request: ferrule.Request, lm: Any = None) -> dict[str, Any]:
    return json.loads(
        render(request, model=lm.name if lm else "", settings=lm.settings if lm else {}),
    )


def _outputs(response: ferrule.Response) -> list[Any]:
    calls = [call.format() for call in response.tool_calls]
    beside = {
        name: value
        for name, value in (("reasoning_content", response.reasoning), ("tool_calls", calls))
        if value
    }
    return [
        {"text": response.text, **beside} if beside else response.text,
        *(x for each in response.others for x in _outputs(each)),
    ]


class _Manners(ferrule.BaseLM):
    """DSPy's behaviour of models: `lm(...)` returns a list; `history` has the model's calls among the last 100 of the process."""

    model_type = "chat"
    model, kwargs = property(lambda self: self.name), property(lambda self: dict(self.settings))
    inspect_history = staticmethod(ferrule.inspect_history)
    dump_state = lambda self: {"model": self.name, "model_type": self.model_type, **self.kwargs}

    @property
    def history(self) -> list[dict[str, Any]]:
        kept = [
            (request, found)
            for lm, request, found in exchanges
            if lm is self and isinstance(found, ferrule.Response)
        ]
        more = {"prompt": None, "model": self.name, "model_type": self.model_type}
        of = lambda found: {
            "response": found,
            "outputs": _outputs(found),
            "usage": found.usage,
            "cost": found.cost,
        }
        return [
            {**_body(request), **more, "kwargs": {**self.kwargs, **request.settings}, **of(found)}
            for request, found in kept
        ]

    def __call__(self, prompt=None, messages=None, **settings):
        with under_dspys_names():
            return _outputs(self.respond(prompt, messages=messages, **settings))

    async def acall(self, prompt=None, messages=None, **settings):
        with under_dspys_names():
            return _outputs(await self.arespond(prompt, messages=messages, **settings))


class LM(_Manners, ferrule.LM):
    def __init__(
        self,
        model: str,
        model_type: str = "chat",
        num_retries: int = 3,
        api_base: str | None = None,
        **more: Any,
    ) -> None:
        known = {
            "timeout_s" if name == "timeout" else name: value
            for name, value in without_rollout(more).items()
            if value is not None
        }
        options = {name: value for name, value in known.items() if name not in _WITHOUT_EFFECT}
        options |= {"wire": "openai_responses"} if model_type == "responses" else {}
        options |= (
            {"base_url": f"{api_base}/v1" if "ollama" in model else api_base} if api_base else {}
        )
        super().__init__(
            model.replace("ollama_chat/", "ollama/"),
            max_retries=num_retries,
            **options,
        )
        self.model_type = model_type


class BaseLM(_Manners):
    """Base class of your own models. Write `forward(prompt, messages, **kwargs)`, which answers in OpenAI's form."""

    capabilities = ferrule.Capabilities(native_tools=False)

    def __init__(
        self,
        model,
        model_type="chat",
        temperature=None,
        max_tokens=None,
        cache=None,
        **more,
    ):
        self.name, self.model_type = model, model_type
        self.settings = {
            k: v
            for k, v in {"temperature": temperature, "max_tokens": max_tokens, **more}.items()
            if v is not None
        }

    async def aforward(self, prompt=None, messages=None, **kwargs):
        return self.forward(prompt, messages, **kwargs)

    complete = lambda self, request: response_of(self.forward(**_body(request, self)))

    async def acomplete(self, request):
        return response_of(await self.aforward(**_body(request, self)))


class DummyLM(_Manners, ferrule.ScriptedLM):
    """Answers from a list, from a mapping by a part of the last message, or as the demos in the prompt do."""

    def __init__(self, answers, follow_examples=False, reasoning=False, adapter=None):
        ferrule.ScriptedLM.__init__(
            self,
            by=self._answer,
            capabilities=ferrule.Capabilities(native_tools=False),
        )
        self.name, self.answers, self.adapter = (
            "dummy",
            iter(answers) if isinstance(answers, list) else answers,
            adapter,
        )
        self.follow_examples, self.reasoning = (
            follow_examples,
            "Some reasoning" if reasoning else None,
        )

    def _answer(self, request: ferrule.Request) -> ferrule.Response:
        asked, *before = [each.text for each in reversed(request.messages)]
        given: Any = (
            self.answers.items()
            if isinstance(self.answers, dict)
            else [("", next(self.answers, {"answer": "No more responses"}))]
        )
        if self.follow_examples:
            given = [
                (question, answer)
                for answer, question in zip(before[::2], before[1::2], strict=False)
            ]
        found = next(
            (
                fields
                for part, fields in given
                if part in asked or part.startswith(asked.split("\n\n")[0])
            ),
            "No more responses",
        )
        form = request.form
        if isinstance(found, dict) and (
            self.adapter
            or form is None
            or not found.keys() <= form.schema.get("properties", {}).keys()
        ):
            signature, adapter = (
                ferrule.Signature(dict.fromkeys(found, ferrule.OutputField())),
                self.adapter or ferrule.ChatAdapter(),
            )
            found = adapter.format_assistant_message_content(signature, found)
        text = form.write(found) if form and isinstance(found, dict) else found
        return ferrule.Response(
            text,
            reasoning=self.reasoning,
            model=self.name,
            usage=ferrule.Usage(calls=1),
        )
