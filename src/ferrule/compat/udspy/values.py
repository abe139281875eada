"""udspy's values over the core's: signatures, mutable predictions, growing histories, events, confirmations, adapters."""

# udspy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportGeneralTypeIssues=false

import inspect
import json
from typing import Any, Literal

from msgspec.structs import replace

import ferrule
from ferrule.approval.direct_calls import forget_direct
from ferrule.runs import decisions

ConfirmationStatus = Literal["pending", "approved", "rejected", "edited", "feedback"]
ApprovalData = dict[str, Any]
HumanInTheLoopRequired = ferrule.ConfirmationRequired


class Signature(ferrule.Signature):
    get_input_fields = classmethod(lambda cls: cls.input_fields)
    get_output_fields = classmethod(lambda cls: cls.output_fields)
    get_instructions = classmethod(lambda cls: cls.instructions)

    @classmethod
    def from_string(cls, spec, instructions=""):
        found = ferrule.Signature(spec, instructions or None)
        if not found.input_fields:
            raise ferrule.SignatureError(
                f"Signature must have at least one input field; found {spec!r}.",
            )
        return make_signature(found.input_fields, found.output_fields, found.instructions)


def make_signature(input_fields, output_fields, instructions=""):
    """Make a signature from types or fields by name."""
    types = {
        name: getattr(each, "annotation", each)
        for name, each in {**input_fields, **output_fields}.items()
    }
    fields = {
        **{name: ferrule.InputField() for name in input_fields},
        **{name: ferrule.OutputField() for name in output_fields},
    }
    return type(Signature)(
        "Signature",
        (Signature,),
        {**fields, "__annotations__": types, "__doc__": instructions, "__module__": __name__},
    )


class ToolCall(ferrule.ToolCall):
    """A call that can also be read like a dict."""

    def __getitem__(self, key):
        return json.dumps(self.args) if key == "arguments" else getattr(self, key)


class Tools:
    """A list of tools, which `format` renders as text."""

    def __init__(self, tools):
        self.tools = list(tools)

    def format(self):
        return "\n".join(f"({k}): {tool.format()}" for k, tool in enumerate(self.tools, 1))


class History(ferrule.History):
    """A history that grows with each call it is passed to."""

    set_system_message = lambda self, content: ferrule.History.add_message(self, "system", content)
    add_system_message = lambda self, content: self.add_message("system", content)

    def add_message(self, role, content="", **more):
        if role == "system":
            self.messages += ferrule.History([{"role": role, "content": content}]).messages
        else:
            super().add_message(role, content, **more)

    def __str__(self):
        lines = [
            f"  {k}. [{each['role']}] {str(each.get('content') or '')[:50]}"
            for k, each in enumerate(self.messages, 1)
        ]
        return "\n".join([f"History ({len(self)} messages):", *lines])


class StreamEvent:
    """Base class of the items of a stream, and of your own events."""


class StreamChunk(StreamEvent):
    """A piece of a field. The last piece of each field is empty and has `is_complete`."""

    def __init__(self, module, field_name, delta, content, is_complete):
        self.module, self.field_name, self.delta, self.content, self.is_complete = (
            module,
            field_name,
            delta,
            content,
            is_complete,
        )

    def __repr__(self):
        shown = f"delta={self.delta!r}, content={self.content!r}, is_complete={self.is_complete}"
        return f"{type(self).__name__}(field={self.field_name}, {shown})"


class OutputStreamChunk(StreamChunk):
    """A piece of an output."""


class ThoughtStreamChunk(StreamChunk):
    """A piece of the model's reasoning."""


class Prediction(StreamEvent, dict):
    """The outputs as a dict with attributes. The other attributes of the core's prediction (`usage`, `history`) are there, too."""

    is_final = property(lambda self: bool(self) and not self.native_tool_calls)

    def __init__(self, /, module=None, native_tool_calls=None, core=None, **outputs):
        super().__init__(outputs)
        vars(self).update(module=module, native_tool_calls=native_tool_calls, core=core)

    def __getattr__(self, name):
        if name not in self and (name.startswith("_") or self.core is None):
            raise AttributeError(f"Prediction has no attribute '{name}'")
        return self[name] if name in self else getattr(self.core, name)

    __setattr__ = dict.__setitem__


def episodes(trajectory):
    """The calls of a run as udspy's episodes."""
    return [
        {
            "thought": step.thought,
            "tool_name": call.name,
            "tool_args": call.args,
            "observation": str(result.content),
        }
        for step in trajectory.steps
        for call, result in zip(step.calls, step.results, strict=True)
    ]


def emit_event(event):
    """Put your own event into the stream; without a stream, do nothing."""
    ferrule.emit_event(type(event).__name__, event)


def module_callback(function):
    """The core's `module_callback`, but the tools that it loads stay with the module after the run."""

    async def in_run(found):
        said = function(replace(found, trajectory=episodes(found.trajectory)))
        said = await said if inspect.isawaitable(said) else said
        found.module.itself.loaded = list(found.module.tools.values())
        return said

    return ferrule.module_callback(
        lambda found: (in_run if isinstance(found.module, ferrule.ModuleView) else function)(found),
    )


def is_module_callback(found):
    return isinstance(found, ferrule.ModuleCallback)


_responses = {}
"""Responses to confirmations by id, until they are used or cleared. The core decides by its own record."""


def get_confirmation_context():
    for each in [*_responses]:
        if not decisions.is_open(each):
            del _responses[each]
    return dict(_responses)


def respond_to_confirmation(confirmation_id, approved=True, data=None, status=None):
    ferrule.respond_to_confirmation(confirmation_id, approved, data, status)
    said = {"approved": approved, "data": data, "status": get_confirmation_status(confirmation_id)}
    _responses.update(get_confirmation_context() | {confirmation_id: said})


def get_confirmation_status(confirmation_id):
    return ferrule.get_confirmation_status(confirmation_id) or "pending"


def clear_confirmation(confirmation_id):
    _responses.pop(confirmation_id, None)
    forget_direct(confirmation_id)


def clear_all_confirmations():
    for each in [*_responses]:
        clear_confirmation(each)


class ChatAdapter(ferrule.JSONAdapter):
    """Asks for JSON, as udspy's `ChatAdapter` does, and has its methods under udspy's names.

    A subclass may override them, except for two that ferrule would never call.
    """

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        for name, instead in _NEVER_CALLED.items():
            if getattr(cls, name, None) is not getattr(ChatAdapter, name, None):
                raise ferrule.ConfigurationError(
                    f"`{cls.__name__}.{name}` would not be called: {instead}.",
                )

    def __init__(self, **options):
        super().__init__(
            **{"use_native_function_calling": None, "fallback": ferrule.ChatAdapter(), **options},
        )

    def format_instructions(self, signature):
        return super().format_system_message(signature)

    def format_inputs(self, signature, inputs):
        return super().format_user_message_content(signature, inputs)

    def format_output_instructions(self, signature):
        return super().user_message_output_requirements(signature)

    def format_user_request(self, signature, inputs):
        parts = [
            self.format_inputs(signature, inputs),
            self.format_output_instructions(signature),
        ]
        return "\n\n".join(part for part in parts if part)

    def format_tool_schemas(self, tools):
        return [self.format_tool_schema(tool) for tool in tools]

    def parse_outputs(self, signature, completion):
        return super().parse(signature, completion)

    # The pieces that ferrule calls, each written with udspy's.

    def format_system_message(self, signature):
        return self.format_instructions(signature)

    def format_user_message_content(
        self,
        signature,
        inputs,
        prefix="",
        suffix="",
        main_request=False,
    ):
        if main_request:
            body = self.format_user_request(signature, inputs)
        else:
            body = self.format_inputs(signature, inputs)
        return "\n\n".join(part for part in (prefix, body, suffix) if part)

    def parse(self, signature, completion):
        return self.parse_outputs(signature, completion)


_NEVER_CALLED = {
    "format_tool_schemas": "tools are declared as they are",
    "process_chunk": "override `reader`, which returns a parser for one streamed answer",
}
