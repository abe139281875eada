"""DSPy's settings and callbacks over the core's."""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import ferrule
from ferrule import settings as core
from ferrule.compat.dspy.values import returned_value
from ferrule.models.wires.openai_chat import render

_DEFAULTS = {
    "num_threads": 8,
    "warn_on_type_mismatch": True,
    "max_errors": 10,
    "track_usage": False,
    "rm": None,
    "trace": None,
}
"""DSPy's settings that the core does not have."""


class Settings:
    """The core's settings, and DSPy's other settings in the core's `extra`."""

    @staticmethod
    def configure(**changes):
        ferrule.configure(**_of_core(changes))

    @staticmethod
    def context(**changes):
        return ferrule.context(**_of_core(changes))

    def __getattr__(self, name):
        others = self.others()
        if name in others:
            return others[name]
        return getattr(core.current(), name)

    def get(self, name, default=None):
        return getattr(self, name, default)

    __getitem__ = get

    @staticmethod
    def others():
        callbacks = []
        for observer in core.current().callbacks:
            if isinstance(observer, Observer):
                callbacks.append(observer.callback)
            else:
                callbacks.append(observer)
        return {**_DEFAULTS, **core.current().extra, "callbacks": callbacks}


settings = Settings()


def _of_core(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes of DSPy's settings as changes of the core's."""
    current = core.current()
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in changes.items():
        if name == "callbacks":
            known[name] = observers(value)
        elif hasattr(current, name):
            known[name] = value
        else:
            extra[name] = value
    if "num_threads" in extra:
        known["max_workers"] = extra["num_threads"]
    return {**known, "extra": {**current.extra, **extra}}


class BaseCallback:
    """Override its hooks: `on_module_start(call_id, instance, inputs)`, `on_lm_end(...)`, ..."""


def observers(callbacks):
    """Callbacks as observers of the core; the core's own observers stay as they are."""
    observers = []
    for callback in callbacks:
        if isinstance(callback, BaseCallback):
            observers.append(Observer(callback))
        else:
            observers.append(callback)
    return observers


class Observer:
    """Calls a callback's hooks with the arguments that DSPy passes."""

    def __init__(self, callback: BaseCallback) -> None:
        self.callback = callback
        self.tools: dict[str, Any] = {}

    def __call__(self, event: ferrule.Event) -> None:
        match event:
            case ferrule.events.RunStarted(program=program, inputs=inputs):
                self.tools.update(getattr(program, "tools", {}))
                self._call(event, "module_start", instance=program, inputs=dict(inputs))
            case ferrule.events.RunFinished(prediction=prediction, error=error):
                self._call(event, "module_end", outputs=prediction, exception=error)
            case ferrule.events.ModelCalled(request=request, lm=lm):
                body = openai_body(request)
                messages = body["messages"]
                self._call(event, "adapter_format_end", outputs=messages, exception=None)
                self._call(event, "lm_start", instance=lm, inputs={"prompt": None, **body})
            case ferrule.events.ModelAnswered(response=response, error=error):
                outputs = response and outputs_of(response)
                self._call(event, "lm_end", outputs=outputs, exception=error)
            case ferrule.events.CallStarted(call=call):
                tool = self.tools.get(call.name, SimpleNamespace(name=call.name))
                self._call(event, "tool_start", instance=tool, inputs=call.args)
            case ferrule.events.CallFinished(result=result):
                outputs = None
                if not result.error:
                    outputs = returned_value(result.value)
                self._call(event, "tool_end", outputs=outputs, exception=result.error)

    def _call(self, event: ferrule.Event, hook: str, **arguments: Any) -> None:
        method = getattr(self.callback, f"on_{hook}", None)
        if method is not None:
            method(call_id=event.span_id, **arguments)


def openai_body(request: ferrule.Request, lm: Any = None) -> dict[str, Any]:
    """A request in OpenAI's form, in which DSPy shows and sends it."""
    if lm is None:
        return json.loads(render(request, model="", settings={}))
    return json.loads(render(request, model=lm.name, settings=lm.settings))


def outputs_of(response: ferrule.Response) -> list[Any]:
    """An answer as the list of outputs that DSPy's models return."""
    more: dict[str, Any] = {}
    if response.reasoning:
        more["reasoning_content"] = response.reasoning
    if response.tool_calls:
        more["tool_calls"] = [call.format() for call in response.tool_calls]
    first: Any = response.text
    if more:
        first = {"text": response.text, **more}
    outputs = [first]
    for other in response.others:
        outputs += outputs_of(other)
    return outputs
