"""DSPy's settings and callbacks over the core's.

`dspy.settings` has no state. It reads and changes the core's settings; a setting that the core does
not have is kept in the core's `extra`, or has its default in `_DEFAULTS`.

A callback of DSPy is an object with a hook for each event. `Observer` puts it behind the core's
interface, a function of an event. It is wrapped when it is configured, and unwrapped when it is
read, so that a program sees the object that it passed.
"""

# DSPy's classes override methods of the core with other signatures, and have no annotations.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from msgspec import structs

import ferrule
from ferrule import settings as core
from ferrule.compat.dspy.values import returned_value
from ferrule.models.wires.openai_chat import render

_DEFAULTS = {
    "num_threads": 8,
    "async_max_workers": 8,
    "warn_on_type_mismatch": True,
    "max_errors": 10,
    "track_usage": False,
    "rm": None,
    "trace": None,
    "version": "3.3",
}
"""The defaults of DSPy's settings that the core does not have."""
_VERSIONS = ("3.3", "3.4", "3.5")
"""The versions of DSPy that `configure(version=)` chooses, oldest first."""


class Settings:
    """The type of `dspy.settings`."""

    def is_version(self, version):
        """Whether the version of DSPy in use is this one, or a later one."""
        return _VERSIONS.index(self.version) >= _VERSIONS.index(version)

    @staticmethod
    def configure(**changes):
        ferrule.configure(**_core_changes(changes))

    @staticmethod
    def context(**changes):
        return ferrule.context(**_core_changes(changes))

    def __getattr__(self, name):
        dspy_settings = self.others()
        if name in dspy_settings:
            return dspy_settings[name]
        return getattr(core.current(), name)

    def __setattr__(self, name, value):
        self.configure(**{name: value})

    def get(self, name, default=None):
        return getattr(self, name, default)

    __getitem__ = get  # so an unknown name is None, not a `KeyError`

    def copy(self):
        """All settings, as arguments of `configure`."""
        settings = structs.asdict(core.current())
        # DSPy has no such names: `others` has what is in `extra`, and `max_workers` as
        # `num_threads`.
        for name in ("extra", "lm_overrides", "max_workers"):
            del settings[name]
        return {**settings, **self.others()}

    @staticmethod
    def others():
        """The settings that the core does not have, or has in another form."""
        callbacks = []
        for observer in core.current().callbacks:
            if isinstance(observer, Observer):
                callbacks.append(observer.callback)
            else:
                callbacks.append(observer)
        return {**_DEFAULTS, **core.current().extra, "callbacks": callbacks}


settings = Settings()


def _core_changes(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes of DSPy's settings as changes of the core's."""
    current = core.current()
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in changes.items():
        if name == "version" and value not in _VERSIONS:
            raise ferrule.errors.ConfigurationError(
                f"`version` is one of {', '.join(_VERSIONS)}, as text; found {value!r}."
            )
        if name == "callbacks":
            known[name] = observers(value)
        elif hasattr(current, name):
            known[name] = value
        else:
            extra[name] = value
    if "num_threads" in extra:  # the core's `max_workers`; in `extra` to be read by DSPy's name
        known["max_workers"] = extra["num_threads"]
    return {**known, "extra": {**current.extra, **extra}}


class BaseCallback:
    """Override its hooks: `on_module_start(call_id, instance, inputs)`, `on_lm_end(...)`, ..."""


def observers(callbacks):
    """Callbacks as observers of the core. Observers of the core stay as they are."""
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
        """The tools of all programs seen so far, by name. An event of a call has only the name, and
        DSPy's hook gets the tool."""

    def __call__(self, event: ferrule.Event) -> None:
        match event:
            case ferrule.events.RunStarted(program=program, inputs=inputs):
                tools = getattr(program, "tools", None)
                if isinstance(tools, Mapping):  # an agent's; a module's own may be a list
                    self.tools.update(tools)
                called_with = {"args": (), "kwargs": dict(inputs)}
                self._call(event, "module_start", instance=program, inputs=called_with)
            case ferrule.events.RunFinished(prediction=prediction, error=error):
                self._call(event, "module_end", outputs=prediction, exception=error)
            case ferrule.events.ModelCalled(request=request, lm=lm):
                body = openai_body(request)
                messages = body["messages"]
                # The core has no event for an adapter; this is the first that has its messages.
                self._call(event, "adapter_format_end", outputs=messages, exception=None)
                del body["messages"]
                asked = {"prompt": None, "messages": messages, "kwargs": body}
                self._call(event, "lm_start", instance=lm, inputs=asked)
            case ferrule.events.ModelAnswered(response=response, error=error):
                outputs = None
                if response is not None:
                    outputs = outputs_of(response)
                self._call(event, "lm_end", outputs=outputs, exception=error)
            case ferrule.events.CallStarted(call=call):
                unknown_tool = SimpleNamespace(name=call.name)
                tool = self.tools.get(call.name, unknown_tool)
                self._call(event, "tool_start", instance=tool, inputs={"kwargs": call.args})
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
    """A request in OpenAI's form, in which DSPy shows and sends it; `lm` adds its settings."""
    if lm is None:
        return json.loads(render(request, model="", settings={}))
    return json.loads(render(request, model=lm.name, settings=lm.settings))


def outputs_of(response: ferrule.Response) -> list[Any]:
    """An answer as the list of outputs that DSPy's models return, one for each choice.

    An output is a text, or a dict if the choice has more than a text.
    """
    more: dict[str, Any] = {}
    if response.reasoning:
        more["reasoning_content"] = response.reasoning
    if response.tool_calls:
        more["tool_calls"] = [call.format() for call in response.tool_calls]
    output: Any = response.text
    if more:
        output = {"text": response.text, **more}
    outputs = [output]
    for other_choice in response.others:
        outputs += outputs_of(other_choice)
    return outputs
