"""udspy's values over the core's: signatures, predictions, histories, events, confirmations."""

# udspy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportGeneralTypeIssues=false

import inspect
import json
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Literal

from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError, create_model

import ferrule
from ferrule.approval.direct_calls import forget_direct
from ferrule.runs import decisions

ConfirmationStatus = Literal["pending", "approved", "rejected", "edited", "feedback"]
ApprovalData = dict[str, Any]
HumanInTheLoopRequired = ferrule.ConfirmationRequired


class Signature(ferrule.Signature):
    @classmethod
    def get_input_fields(cls):
        return cls.input_fields

    @classmethod
    def get_output_fields(cls):
        return cls.output_fields

    @classmethod
    def get_instructions(cls):
        return cls.instructions

    @classmethod
    def from_string(cls, spec, instructions=""):
        signature = ferrule.Signature(spec, instructions or None)
        if not signature.input_fields:
            raise ferrule.errors.SignatureError(
                f"Signature must have at least one input field; found {spec!r}."
            )
        inputs, outputs = signature.input_fields, signature.output_fields
        return make_signature(inputs, outputs, signature.instructions)


def make_signature(input_fields, output_fields, instructions=""):
    """Make a signature from types or fields by name."""
    members: dict[str, Any] = {}
    types: dict[str, Any] = {}
    for name, field in input_fields.items():
        members[name] = ferrule.InputField()
        types[name] = getattr(field, "annotation", field)
    for name, field in output_fields.items():
        members[name] = ferrule.OutputField()
        types[name] = getattr(field, "annotation", field)
    members |= {"__annotations__": types, "__doc__": instructions, "__module__": __name__}
    return type(Signature)("Signature", (Signature,), members)


class AdapterParseError(ferrule.AdapterParseError):
    """The core's error with udspy's constructor and attributes."""

    adapter_name = property(attrgetter("adapter"))
    lm_response = property(attrgetter("text"))
    parsed_result = property(attrgetter("parsed"))

    def __init__(self, adapter_name, signature, lm_response, message=None, parsed_result=None):
        problems = [("", message or "does not fit")]
        super().__init__(
            adapter_name, lm_response, problems, parsed=parsed_result, signature=signature
        )


@contextmanager
def under_udspys_names():
    """A block whose `AdapterParseError`s are udspy's: the same objects, in another class.

    They cannot be made again, because udspy's constructor takes other arguments.
    """
    try:
        yield
    except ferrule.AdapterParseError as error:
        error.__class__ = AdapterParseError
        raise


class ToolCall(ferrule.ToolCall):
    """A call that can also be read like a dict."""

    def __getitem__(self, key):
        if key == "arguments":
            return json.dumps(self.args)
        return getattr(self, key)


class Tool(ferrule.Tool):
    """A tool with udspy's names for its schema."""

    @property
    def input_schema(self):
        return self.parameters

    args_schema = input_schema

    def parse_and_validate_args(self, args):
        """The arguments in the function's types. Raises pydantic's `ValidationError`."""
        fields = {}
        for name, parameter in inspect.signature(self.func).parameters.items():
            default = parameter.default
            if default is parameter.empty:
                default = ...
            fields[name] = (self.arg_types.get(name, str), default)
        checked = create_model(self.name, **fields).model_validate(args)
        return {name: getattr(checked, name) for name in fields}


def tool(function=None, /, description=None, *, name=None, **options):
    """Turn a function into a tool: `@tool`, or `@tool(name="search", description="...")`."""
    if function is not None and not isinstance(function, str):
        return Tool(function, name, description, **options)
    name = name or function

    def decorate(function):
        return Tool(function, name, description, **options)

    vars(decorate)["__makes_tool__"] = True  # as the core's decorator
    return decorate


class Tools:
    """A list of tools, which `format` renders as text."""

    def __init__(self, tools):
        self.tools = list(tools)

    def format(self):
        lines = [f"({number}): {tool.format()}" for number, tool in enumerate(self.tools, 1)]
        return "\n".join(lines)


class History(ferrule.History):
    """A history that grows with each call it is passed to."""

    def set_system_message(self, content):
        ferrule.History.add_message(self, "system", content)

    def add_system_message(self, content):
        self.add_message("system", content)

    def add_message(self, role, content="", **more):
        if role == "system":
            self.messages += ferrule.History([{"role": role, "content": content}]).messages
        else:
            super().add_message(role, content, **more)

    def __str__(self):
        lines = [f"History ({len(self)} messages):"]
        for number, message in enumerate(self.messages, 1):
            text = str(message.get("content") or "")[:50]
            lines.append(f"  {number}. [{message['role']}] {text}")
        return "\n".join(lines)


class ResumeState(ferrule.ResumeState):
    """A question with a person's response; also a question that a module raised itself."""

    def __init__(self, exception, user_response="yes"):
        if isinstance(exception, ferrule.ConfirmationRequired) and exception.run is None:
            self._raised = self._asked = exception
            self.run, self.response = None, user_response
        elif user_response == "yes":  # a decision that was made already holds
            super().__init__(exception)
        else:
            super().__init__(exception, user_response)


def suspendable(aexecute):
    """Returns the method: every module here calls its own `asuspend` and `aresume`."""
    return aexecute


class StreamEvent:
    """Base class of the items of a stream, and of your own events."""


class StreamChunk(StreamEvent):
    """A piece of a field. The last piece of each field is empty and has `is_complete`."""

    def __init__(self, module, field_name, delta, content, is_complete):
        self.module = module
        self.field_name = field_name
        self.delta = delta
        self.content = content
        self.is_complete = is_complete

    def __repr__(self):
        status = "streaming"
        if self.is_complete:
            status = "complete"
        shown = f"status={status}, delta={self.delta!r}, content={self.content!r}"
        return f"{type(self).__name__}(field={self.field_name}, {shown})"


class OutputStreamChunk(StreamChunk):
    """A piece of an output."""


class ThoughtStreamChunk(StreamChunk):
    """A piece of the model's reasoning."""


class Prediction(StreamEvent, dict):
    """The outputs as a dict with attributes.

    The other attributes of the core's prediction (`usage`, `history`) are there, too.
    """

    @property
    def is_final(self):
        return bool(self) and not self.native_tool_calls

    def __init__(self, /, module=None, native_tool_calls=None, core=None, **outputs):
        super().__init__(outputs)
        vars(self).update(module=module, native_tool_calls=native_tool_calls, core=core)

    def __getattr__(self, name):
        if name in self:
            return self[name]
        if name.startswith("_") or self.core is None:
            raise AttributeError(f"Prediction has no attribute '{name}'")
        return getattr(self.core, name)

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


def ReactContext(module, trajectory=(), input_args=None, *, stream=False, history=None):
    """A context of your own, for a test of a callback."""
    return _Context(module, trajectory, input_args or {}, history or History(), stream)


class _Context(ferrule.ModuleContext, frozen=True):
    stream: bool = False


def module_callback(function):
    """The core's `module_callback`, but the tools that it loads stay with the module."""

    async def in_run(context):
        message = function(replace(context, trajectory=episodes(context.trajectory)))
        if inspect.isawaitable(message):
            message = await message
        context.module.itself.loaded = list(context.module.tools.values())
        return message

    def callback(context):
        if isinstance(context.module, ferrule.ModuleView):
            return in_run(context)
        return function(context)

    return ferrule.module_callback(callback)


def is_module_callback(value):
    return isinstance(value, ferrule.ModuleCallback)


_responses = {}
"""Responses to confirmations by id, until they are used or cleared.

Only for reading: the core decides by its own record.
"""


def get_confirmation_context():
    for confirmation_id in [*_responses]:
        if not decisions.is_open(confirmation_id):
            del _responses[confirmation_id]
    return dict(_responses)


def respond_to_confirmation(confirmation_id, approved=True, data=None, status=None):
    ferrule.respond_to_confirmation(confirmation_id, approved, data, status)
    status = get_confirmation_status(confirmation_id)
    response = {"approved": approved, "data": data, "status": status}
    _responses.update(get_confirmation_context() | {confirmation_id: response})


def get_confirmation_status(confirmation_id):
    return ferrule.get_confirmation_status(confirmation_id) or "pending"


def clear_confirmation(confirmation_id):
    _responses.pop(confirmation_id, None)
    forget_direct(confirmation_id)


def clear_all_confirmations():
    for confirmation_id in [*_responses]:
        clear_confirmation(confirmation_id)


class ChatAdapter(ferrule.JSONAdapter):
    """Asks for JSON, as udspy's `ChatAdapter` does, and has its methods under udspy's names.

    A subclass may override them, except for two that ferrule would never call.
    """

    writes_native_text = False  # udspy's prompts, also with native calls

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        for name, instead in _NEVER_CALLED.items():
            if getattr(cls, name, None) is not getattr(ChatAdapter, name, None):
                raise ferrule.errors.ConfigurationError(
                    f"`{cls.__name__}.{name}` would not be called: {instead}."
                )

    def __init__(self, **options):
        options.setdefault("use_native_function_calling", None)
        options.setdefault("fallback", ferrule.ChatAdapter())
        options.setdefault("repairs", 2)  # udspy asks three times
        super().__init__(**options)

    def __setattr__(self, name, value):
        # The core's own are fixed; those of a subclass, such as a counter, change in udspy.
        if name in ferrule.Adapter.__slots__:
            super().__setattr__(name, value)
        else:
            object.__setattr__(self, name, value)

    def format_instructions(self, signature):
        return super().format_system_message(signature)

    def format_inputs(self, signature, inputs):
        return super().format_user_message_content(signature, inputs)

    def format_output_instructions(self, signature):
        return super().user_message_output_requirements(signature)

    def format_user_request(self, signature, inputs):
        parts = [self.format_inputs(signature, inputs), self.format_output_instructions(signature)]
        return "\n\n".join(part for part in parts if part)

    def format_tool_schemas(self, tools):
        return [self.format_tool_schema(tool) for tool in tools]

    def format_tool_schema(self, tool):
        if isinstance(tool, type):
            tool = Tool(tool)  # a model of pydantic, whose fields are the arguments
        return super().format_tool_schema(tool)

    def parse_outputs(self, signature, completion):
        with under_udspys_names():
            return super().parse(signature, completion)

    def validate_outputs(self, signature, outputs, native_tool_calls, completion_text):
        """Raise `AdapterParseError` unless these are the outputs, or calls come first."""
        missing = [name for name in signature.output_fields if name not in outputs]
        if missing and not native_tool_calls:
            raise AdapterParseError(
                type(self).__name__,
                signature,
                completion_text,
                f"The outputs {missing} are missing.",
                outputs,
            )

    # The pieces that ferrule calls, each written with udspy's.

    def format_system_message(self, signature):
        return self.format_instructions(signature)

    def format_user_message_content(
        self, signature, inputs, prefix="", suffix="", main_request=False
    ):
        if main_request:
            body = self.format_user_request(signature, inputs)
        else:
            body = self.format_inputs(signature, inputs)
        return "\n\n".join(part for part in (prefix, body, suffix) if part)

    def parse(self, signature, completion):
        return self.parse_outputs(signature, completion)


def format_value(value):
    """A value as the text of a prompt."""
    if isinstance(value, str):
        return value
    return TypeAdapter(Any).dump_json(value, indent=2).decode()


def parse_value(text, type_):
    """The value in a text. A text that does not fit stays a text, except for a number."""
    text = text.strip()
    if type_ is str:
        return text
    if type_ is bool:
        return text.lower() in {"true", "yes", "1"}
    if type_ in {int, float}:
        return type_(text)
    try:
        return TypeAdapter(type_).validate_json(text)
    except ValidationError:
        return text


_NEVER_CALLED = {
    "format_tool_schemas": "tools are declared as they are",
    "process_chunk": "override `reader`, which returns a parser for one streamed answer",
}
