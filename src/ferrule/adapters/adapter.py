"""`Adapter`: renders signatures, inputs and steps as messages, and parses answers into outputs.

The class has three groups of methods. Programs use the first (`opening`, `read`, `request`, ...).
`ChatAdapter`, `JSONAdapter` and `XMLAdapter` define the second, their *form*: how fields look in a
message, what an answer must look like, and how to find the fields in one. The third are the
*pieces* of a prompt, under DSPy's names, which users call and override. By default a piece is
written in the adapter's form. If a class overrides a piece, programs get messages that are composed
of pieces (`composing.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

from msgspec import Struct

from ferrule.adapters import composing
from ferrule.adapters.demos import FieldWriter, demo_messages, has_output, history_messages
from ferrule.adapters.fields import (
    PromptFields,
    is_native_text,
    native_signature,
    prompt_fields,
    whole_of,
)
from ferrule.adapters.native_text import (
    NativeText,
    answers_in_text,
    native_field_description,
    native_system,
    native_task_description,
    native_text,
)
from ferrule.adapters.parse import output_spec, parse_outputs
from ferrule.adapters.render import as_read, field_description, join_pieces, task_description
from ferrule.errors import (
    AdapterParseError,
    ConfigurationError,
    ToolCallError,
    checks_keywords,
    shown,
)
from ferrule.events import Formatted, ParseFinished, ParseStarted
from ferrule.observers import events_around
from ferrule.settings import Scope, current, entered, is_observed, scope
from ferrule.values.calls.offered import calls_in_answer, calls_in_text
from ferrule.values.content.convert import content_of
from ferrule.values.conversation.exchange import (
    NO_TOOLS,
    Capabilities,
    Declarations,
    Request,
    Response,
    Shape,
)
from ferrule.values.conversation.message import Message, Messages, openai_message
from ferrule.values.signatures.compiled import compiled
from ferrule.values.signatures.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ferrule.events import Event
    from ferrule.values.content.convert import Piece
    from ferrule.values.content.parts import Content
    from ferrule.values.conversation.exchange import FieldReader

_MOST_SHOWN = 400
_CALL_CODES = frozenset({"invalid_tool_calls", "invalid_tool_call", "invalid_tool_call_arguments"})
_FORM = frozenset({"structure", "reminder", "render_fields", "render_answer"})
"""The methods of the form in which an adapter writes fields."""
_SETTINGS = ("use_native_function_calling", "fallback", "repairs")
_NO_SETTINGS: Mapping[str, Any] = {}


class _PromptParts(Struct, frozen=True):
    """The parts that all prompts of a signature share."""

    system: Message
    fields: PromptFields
    reminder: str
    writer: FieldWriter


class _AnswerForm(Struct):
    """The `AnswerForm` of a request: its JSON Schema, and outputs written as an answer."""

    adapter: Adapter
    signature: type[Signature]
    native: bool = False

    @property
    def schema(self) -> Mapping[str, Any]:
        return self.signature.plan.output_schema()

    def write(self, outputs: Mapping[str, Any]) -> str:
        adapter = self.adapter
        if adapter.overridden:
            return adapter.format_assistant_message_content(self.signature, outputs)
        writer = adapter.writer(self.signature, native=self.native)
        return join_pieces(writer.render_answer(as_read(self.signature, outputs)))

    def outside(self, text: str) -> str:
        adapter, signature = self.adapter, self.signature
        return _outside_fields(adapter, signature, text, adapter.raw_fields(signature, text))


class Adapter:
    """Base class of adapters. Immutable; safe to share between threads and tasks.

    A subclass overrides pieces of the prompt and `parse`, or defines its own form; its `__init__`
    may set its own attributes.
    """

    use_native_function_calling: bool | None
    """True: tool calls are native. False: they are written in the text. None: the model decides."""
    fallback: Adapter | None
    """Adapter to retry with when an answer cannot be parsed, or None."""
    repairs: int
    """How many times the model is asked to correct an answer that cannot be parsed."""

    reads_values: ClassVar[bool] = False
    """Whether `raw_fields` returns decoded JSON values; otherwise it returns text."""
    overridden: ClassVar[frozenset[str]] = frozenset()
    """The pieces that this class overrides: prompts are then composed from the pieces."""
    writes_native_text: ClassVar[bool] = False
    """Whether native conversations are written as plain text (`native_text.py`).

    Otherwise, and in a subclass that writes fields in a form of its own, they have the adapter's
    form.
    """

    __slots__ = _SETTINGS

    @checks_keywords
    def __init__(
        self,
        *,
        use_native_function_calling: bool | None = None,
        fallback: Adapter | None = None,
        repairs: int = 1,
    ) -> None:
        if use_native_function_calling not in {None, True, False}:
            raise ConfigurationError(
                f"`use_native_function_calling` is True, False or None, "
                f"found {shown(use_native_function_calling)}."
            )
        if fallback is not None and not isinstance(fallback, Adapter):
            raise ConfigurationError(f"`fallback` is an adapter or None, found {shown(fallback)}.")
        if not isinstance(repairs, int) or isinstance(repairs, bool) or repairs < 0:
            raise ConfigurationError(
                f"`repairs` is a whole number of at least 0, found {shown(repairs)}."
            )
        self._refuse_missing_form()
        object.__setattr__(self, "use_native_function_calling", use_native_function_calling)
        object.__setattr__(self, "fallback", fallback)
        object.__setattr__(self, "repairs", repairs)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.overridden = composing.overridden_pieces(cls, Adapter)
        has_own_form = not vars(cls).keys().isdisjoint(_FORM)
        if has_own_form and "writes_native_text" not in vars(cls):
            cls.writes_native_text = False

    def _refuse_missing_form(self) -> None:
        kind = type(self)
        can_write = {composing.USER, composing.ASSISTANT} <= self.overridden
        if kind.render_fields is Adapter.render_fields and not can_write:
            raise TypeError(
                f"`{kind.__name__}` cannot write fields: define `render_fields`, "
                f"or `{composing.USER}` and `{composing.ASSISTANT}`."
            )
        if kind.raw_fields is Adapter.raw_fields and "parse" not in self.overridden:
            raise TypeError(
                f"`{kind.__name__}` cannot read answers: define `raw_fields`, or `parse`."
            )

    def __setattr__(self, name: str, value: Any) -> None:
        # A subclass has a `__dict__`, and may set each of its own attributes once.
        if hasattr(self, name) or not hasattr(self, "__dict__"):
            raise AttributeError(f"An adapter is immutable (`{name}`): create another one.")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"An adapter is immutable (`{name}`): create another one.")

    def _attributes(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return {**settings, **getattr(self, "__dict__", _NO_SETTINGS)}

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if type(other) is not type(self):
            return False
        return cast("Adapter", other)._attributes() == self._attributes()

    def __hash__(self) -> int:
        return hash((type(self), self.use_native_function_calling, self.fallback, self.repairs))

    def __repr__(self) -> str:
        attributes = ", ".join(f"{name}={value}" for name, value in self._attributes().items())
        return f"{type(self).__name__}({attributes})"

    def __deepcopy__(self, memo: Any) -> Adapter:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self._attributes()))

    # -- what programs use: rendering

    def opening(
        self,
        signature: type[Signature],
        inputs: Mapping[str, Any],
        *,
        demos: Iterable[Any] = (),
        native: bool = False,
        whole: type[Signature] | None = None,
    ) -> Messages:
        """Render the start of a conversation: system message, demos, history inputs, question.

        `native` omits tools and the output for their calls: the request carries them outside the
        text. `whole` is the program's signature if `signature` asks for a single step of the
        program: then history turns, and demos that are not steps, have the outputs of `whole`.
        Raises `InputError` for a demo or a history that cannot be rendered.
        """
        if self.overridden - {"parse"}:
            with _working_for_run():
                return composing.compose_opening(
                    self, signature, inputs, demos=demos, native=native, whole=whole
                )
        parts = self._prompt_parts(signature, native=native)
        fields, writer = parts.fields, parts.writer
        messages: list[Message] = []
        if parts.system.content:
            messages.append(parts.system)
        demos = list(demos)
        if demos or fields.histories:
            turn_fields = fields
            if whole is not None:
                turn_fields = self._prompt_parts(whole, native=native).fields
            for index, demo in enumerate(demos):
                if has_output(demo, fields):
                    demo_fields = fields
                else:
                    demo_fields = turn_fields
                messages += demo_messages(writer, demo_fields, demo, index)
            for name in fields.histories:
                messages += history_messages(writer, turn_fields, inputs.get(name))
        question = _question(writer, fields.inputs, inputs, parts.reminder)
        if question or not messages or messages[-1].role != "user":
            messages.append(Message("user", content_of(question or ["Begin."])))
        return Messages(messages)

    def step_message(self, fields: Mapping[str, Any]) -> Message:
        """Render a finished step of a loop as a user message."""
        if composing.USER in self.overridden:
            return Message("user", content_of(composing.compose_fields(self, fields)))
        return Message("user", content_of(self.render_fields(fields)))

    def answer_content(
        self, signature: type[Signature], outputs: Mapping[str, Any], *, native: bool = False
    ) -> Content:
        """Render outputs as the answer that ends a conversation."""
        if composing.ASSISTANT in self.overridden:
            return composing.compose_answer(self, signature, outputs)
        writer: FieldWriter = self
        if native and self.writes_native_text:
            writer = native_text(prompt_fields(signature, native=True))
        return content_of(writer.render_answer(as_read(signature, outputs)))

    def repair_messages(
        self,
        signature: type[Signature],
        response: Response,
        error: AdapterParseError,
        *,
        native: bool = False,
    ) -> tuple[Message, ...]:
        """Render an answer that could not be parsed, with its problems, for the model to correct.

        Invalid native calls are rendered as text: providers reject calls without results.
        """
        answer = response.text
        if not answer and native and response.tool_calls:
            written = [
                f"{call.name or '(no name)'} {shown(call.arguments_text, _MOST_SHOWN)}"
                for call in response.tool_calls
            ]
            answer = f"(calls: {'; '.join(written)})"
        problems = "\n".join(
            f"- `{name}`: {problem}" if name else f"- {problem}" for name, problem in error.problems
        )
        demand = "Write the whole answer again."
        if native and error.code in _CALL_CODES:
            demand = "Make all your calls again."
        reminder = self._repair_reminder(signature, native=native)
        question = f"Your answer could not be read:\n{problems}\n\n{demand} {reminder}".rstrip()
        return (Message("assistant", answer or "(empty)"), Message("user", question))

    def writer(self, signature: type[Signature], *, native: bool) -> FieldWriter:
        """What writes the fields of a conversation: the adapter, or `NativeText`."""
        if native and self.writes_as_native_text(signature):
            return native_text(prompt_fields(signature, native=True))
        return self

    def writes_as_native_text(self, signature: type[Signature]) -> bool:
        """Whether a conversation with native calls is written as plain text.

        An answer with several fields needs the adapter's form to tell them apart.
        """
        return self.writes_native_text and answers_in_text(signature)

    def writer_of(self, signature: type[Signature]) -> FieldWriter:
        """What writes the fields of a signature that a piece got."""
        if is_native_text(signature):
            return native_text(prompt_fields(signature))
        return self

    # -- what programs use: requests

    def request(
        self,
        signature: type[Signature],
        messages: Messages,
        *,
        tools: Declarations = NO_TOOLS,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel: bool | None = None,
        settings: Mapping[str, Any] = _NO_SETTINGS,
        capabilities: Capabilities | None = None,
    ) -> Request:
        """Build the request for these messages. It has tools or a response shape, never both.

        Tools come from the program and its inputs, in that order. Raises `ToolCallError`
        (`invalid_request`) for tools in `settings` and for the choice of an unknown tool.
        """
        if not isinstance(cast("Any", settings), Mapping):
            msg = f"The settings of a request are a mapping, found {shown(settings)}."
            raise ToolCallError("invalid_request", msg, raw=settings)
        if "tools" in settings or "messages" in settings:
            msg = (
                "`tools` and `messages` are not settings of a request. Tools come with the program "
                "(`tools=`), or as inputs of type `Tool`."
            )
            raise ToolCallError("invalid_request", msg, raw=settings)
        has_tools = len(tools) > 0
        form = _AnswerForm(self, signature, native=has_tools)
        if not has_tools:
            shape = self.shape(signature, capabilities)
            return Request(messages, shape=shape, settings=settings, form=form)
        if capabilities is not None and not capabilities.parallel_tools:
            parallel = None
        if tool_choice is not None:
            _refuse_unknown(tool_choice, tools)
        return Request(messages, tools, tool_choice, parallel, settings=settings, form=form)

    def shape(self, signature: type[Signature], capabilities: Capabilities | None) -> Shape | None:
        """The response format that the provider enforces, or None."""
        del signature, capabilities
        return None

    def calls_natively(self, capabilities: Capabilities) -> bool:
        """Whether tool calls are native with a model that has these capabilities."""
        return self.use_native_function_calling is not False and capabilities.native_tools

    # -- what programs use: reading

    def read(
        self,
        signature: type[Signature],
        response: Response,
        *,
        lenient: bool = False,
        tools: Iterable[Any] = (),
    ) -> dict[str, Any]:
        """Parse an answer into typed outputs. Raises `AdapterParseError` with every problem.

        With `lenient`, an answer without any field becomes the value of the only text output.
        Native calls fill the output of type `ToolCalls`; a signature without one ignores them.
        Without native calls, `read` looks for calls of `tools` in the text forms that models fall
        back to: in the value of that output or, if it is missing, in the text. If the answer is
        complete without calls, its fields are never searched: a call quoted in one does not run.
        """
        if "parse" not in self.overridden:
            return self._read_own_form(signature, response, lenient=lenient, tools=tools)
        with _working_for_run():
            return composing.read_with_override(
                self, self._read_own_form, signature, response, lenient=lenient, tools=tools
            )

    def _read_own_form(
        self,
        signature: type[Signature],
        response: Response,
        *,
        lenient: bool = False,
        tools: Iterable[Any] = (),
    ) -> dict[str, Any]:
        """`read` in the adapter's own form, even where a subclass overrides `parse`."""
        text = response.text or ""
        raw: Mapping[str, Any] = {}
        if text:
            raw = self.raw_fields(signature, text)
        is_value = self.reads_values
        spec = output_spec(signature)
        has_calls = spec.calls is not None and bool(response.tool_calls)
        if tools and not has_calls and spec.calls is not None and spec.calls not in raw:
            searched = _outside_fields(self, signature, text, raw)
            if text:
                calls, rest = calls_in_text(searched, tools)
            else:
                calls, rest = calls_in_answer("", response.reasoning, tools)
            if calls:
                raw, text, has_calls = {**raw, spec.calls: list(calls)}, rest, True
        may_be_bare = text and (lenient or has_calls) and not raw.keys() - {spec.calls}
        if may_be_bare and spec.text is not None:
            bare = self.outside(signature, text)
            if spec.is_bare(raw, bare):
                raw, is_value = {**raw, spec.text: bare}, False
        cut = ""
        if response.finish_reason == "length" and not is_value:
            cut = _cut_field(raw, response)
        if "\\" in text and not is_value:
            raw = {
                name: self.unescape(name, value) if isinstance(value, str) else value
                for name, value in raw.items()
            }
        adapter = type(self).__name__
        flaw = ""
        if text and not spec.is_complete(raw):
            flaw = self.flaw(signature, text)
        try:
            return parse_outputs(
                adapter, signature, raw, response, is_value=is_value, cut=cut, flaw=flaw
            )
        except AdapterParseError as error:
            are_calls_unreadable = error.code == "invalid_tool_calls" and not response.tool_calls
            if spec.calls is None or not tools or not are_calls_unreadable:
                raise
            # The value of the output for calls may have another text form.
            if not isinstance(error.raw, str):
                raise
            calls, _ = calls_in_text(error.raw, tools)
            if not calls:
                raise
            raw = {**raw, spec.calls: list(calls)}
            return parse_outputs(adapter, signature, raw, response, is_value=is_value)

    # -- the form, which each adapter defines

    def structure(self, fields: PromptFields) -> str:
        """Describe the form of messages and answers, for the system message."""
        del fields
        return ""

    def reminder(self, outputs: Sequence[str]) -> str:
        """Return the last lines of a question: which outputs to write, and how."""
        del outputs
        return ""

    def render_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """Render fields with their values. A subclass that overrides the pieces needs no other."""
        return composing.compose_fields(self, fields)

    def render_answer(self, fields: Mapping[str, Any]) -> list[Piece]:
        """Render fields with their values as a complete answer."""
        return self.render_fields(fields)

    def unescape(self, name: str, text: str) -> str:
        """Remove the escapes of `render_fields` from the text of a field."""
        del name
        return text

    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """Return the fields of an answer, unchecked: text, or values if `reads_values`."""
        del signature, text
        return {}

    def outside(self, signature: type[Signature], text: str) -> str:
        """Return the text of an answer outside its fields."""
        del signature
        return text

    def flaw(self, signature: type[Signature], text: str) -> str:
        """Say why an answer has no fields although it has their form. Empty if it does not.

        The answer may have the form of the fallback adapter, which is accepted, too.
        """
        if self.fallback is None:
            return ""
        return self.fallback.flaw(signature, text)

    def reader(self, signature: type[Signature]) -> FieldReader:
        """Return a parser that splits one streamed answer into fields; by default it finds none."""
        del signature
        return _NoFields()

    # -- the pieces, which a subclass may override

    def format(
        self, signature: type[Signature], demos: Iterable[Any], inputs: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the messages of a question, in OpenAI's form."""
        if _is_direct_call():
            with self._observed_format() as pass_on:
                return pass_on(self._format(signature, demos, inputs))
        return self._format(signature, demos, inputs)

    def _format(
        self, signature: type[Signature], demos: Iterable[Any], inputs: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        # Not `opening`, which calls `format` if a subclass overrides it.
        if self.overridden:
            messages = composing.compose(self, signature, demos, inputs, whole_of(signature))
        else:
            messages = self.opening(signature, inputs, demos=demos)
        return [openai_message(message) for message in messages]

    def format_system_message(self, signature: type[Signature]) -> str:
        """Return the text of the system message: the three pieces below, joined.

        Without outputs, the second is left out.
        """
        parts = [self.format_field_description(signature)]
        if prompt_fields(signature).outputs:
            parts.append(self.format_field_structure(signature))
        parts.append(self.format_task_description(signature))
        return "\n\n".join(part for part in parts if part)

    def format_field_description(self, signature: type[Signature]) -> str:
        """List the fields with their types and descriptions."""
        fields = prompt_fields(signature)
        if is_native_text(signature):
            return native_field_description(fields)
        return field_description(fields)

    def format_field_structure(self, signature: type[Signature]) -> str:
        """Describe the form of messages and answers."""
        if is_native_text(signature):
            return ""
        return self.structure(prompt_fields(signature))

    def format_task_description(self, signature: type[Signature]) -> str:
        """Return the instructions."""
        fields = prompt_fields(signature)
        if is_native_text(signature):
            return native_task_description(signature, fields)
        return task_description(signature, fields)

    def user_message_output_requirements(self, signature: type[Signature]) -> str:
        """Return the request for the outputs, at the end of the question. Empty without outputs."""
        if is_native_text(signature):
            return ""
        return self.reminder(list(prompt_fields(signature).outputs))

    def format_user_message_content(
        self,
        signature: type[Signature],
        inputs: Mapping[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """Render the inputs between `prefix` and `suffix`.

        `main_request` adds the request for the outputs.
        """
        values = {name: inputs[name] for name in signature.plan.inputs if name in inputs}
        parts = [prefix]
        if values:
            parts.append(join_pieces(self.writer_of(signature).render_fields(values)))
        if main_request:
            parts.append(self.user_message_output_requirements(signature))
        parts.append(suffix)
        return "\n\n".join(part for part in parts if part).strip()

    def format_assistant_message_content(
        self,
        signature: type[Signature],
        outputs: Mapping[str, Any],
        missing_field_message: str | None = None,
    ) -> str:
        """Render an answer that `parse` reads as these outputs.

        A missing output is omitted, or gets `missing_field_message`.
        """
        values = {
            name: outputs.get(name, missing_field_message)
            for name in signature.plan.outputs
            if name in outputs or missing_field_message
        }
        return join_pieces(self.writer_of(signature).render_answer(as_read(signature, values)))

    def format_demos(
        self, signature: type[Signature], demos: Iterable[Any]
    ) -> list[dict[str, Any]]:
        """Return demos as messages in OpenAI's form."""
        fields = prompt_fields(signature)
        turn_fields = prompt_fields(whole_of(signature) or signature)
        messages: list[Message] = []
        for index, demo in enumerate(demos):
            if has_output(demo, fields):
                demo_fields = fields
            else:
                demo_fields = turn_fields
            messages += demo_messages(self.writer_of(signature), demo_fields, demo, index)
        return [openai_message(message) for message in messages]

    def format_conversation_history(
        self, signature: type[Signature], history_field_name: str, inputs: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the history in one of the inputs as messages in OpenAI's form."""
        history = inputs.get(history_field_name)
        writer = self.writer_of(signature)
        messages = history_messages(writer, prompt_fields(signature), history)
        return [openai_message(message) for message in messages]

    def parse(self, signature: type[Signature], completion: str) -> dict[str, Any]:
        """Parse the text of an answer into typed outputs. Raises `AdapterParseError`."""
        # An override of `parse` may call this one, and `read` would call the override again.
        if "parse" in self.overridden:
            read = self._read_own_form
        else:
            read = self.read
        response = Response(completion)
        if _is_direct_call():
            with self._observed_parse() as pass_on:
                return pass_on(read(signature, response))
        return read(signature, response)

    def format_tool_schema(self, tool: Any) -> dict[str, Any]:
        """Return a copy of a tool's canonical declaration."""
        declaration: object = getattr(tool, "declaration", tool)
        if not isinstance(declaration, Mapping):
            msg = f"`format_tool_schema` takes a `Tool`, found {shown(tool)}."
            raise ToolCallError("invalid_tool_spec", msg, raw=tool)
        return deepcopy(dict(cast("Mapping[str, Any]", declaration)))

    # -- the parts of messages

    def _prompt_parts(self, signature: type[Signature], *, native: bool) -> _PromptParts:
        # Adapters of one class write equal prompts, unless they have attributes of their own.
        if getattr(self, "__dict__", None):
            writer = self
        else:
            writer = type(self)
        cache = compiled(signature).cache
        key = (writer, native)
        if key not in cache:
            cache.setdefault(key, self._build_prompt_parts(signature, native=native))
        return cache[key]

    def _build_prompt_parts(self, signature: type[Signature], *, native: bool) -> _PromptParts:
        fields = prompt_fields(signature, native=native)
        writer = self.writer(signature, native=native)
        if isinstance(writer, NativeText):
            text = native_system(signature, fields, has_schema=writer.answers_in_json)
            system = Message("system", text)
            return _PromptParts(system, fields, "", writer)
        parts = [field_description(fields)]
        if fields.outputs:
            parts.append(self.structure(fields))
        parts.append(task_description(signature, fields))
        system = Message("system", "\n\n".join(part for part in parts if part))
        return _PromptParts(system, fields, self.reminder(list(fields.outputs)), writer)

    def _repair_reminder(self, signature: type[Signature], *, native: bool) -> str:
        if self.overridden:
            if native:
                as_native_text = self.writes_as_native_text(signature)
                signature = native_signature(signature, as_native_text=as_native_text)
            return self.user_message_output_requirements(signature)
        if native:
            return self._prompt_parts(signature, native=True).reminder
        return self.reminder(list(signature.plan.outputs))

    # -- events of direct calls

    @contextmanager
    def _observed_format(self) -> Generator[Callable[[Any], Any]]:
        name = type(self).__name__

        def end(_: str, messages: Any, error: BaseException | None) -> Event | None:
            if error:
                return None
            return Formatted("", 1, name, len(messages), 0)

        with _events_around(lambda _: None, end) as pass_on:
            yield pass_on

    @contextmanager
    def _observed_parse(self) -> Generator[Callable[[Any], Any]]:
        name = type(self).__name__

        def begin(_: str) -> Event:
            return ParseStarted("", 1, name, 0)

        def end(_: str, outputs: Any, error: BaseException | None) -> Event:
            return ParseFinished("", 1, name, 0, tuple(outputs or ()), error)

        with _events_around(begin, end) as pass_on:
            yield pass_on


def _question(
    writer: FieldWriter, fields: Iterable[str], inputs: Mapping[str, Any], reminder: str
) -> list[Piece]:
    values = {name: inputs[name] for name in fields if name in inputs}
    pieces: list[Piece] = []
    if values:
        pieces += writer.render_fields(values)
    if pieces and reminder:
        pieces.append("\n\n")
    if reminder:
        pieces.append(reminder)
    return pieces


def _is_direct_call() -> bool:
    """Whether user code called the adapter, and observers want to know."""
    return is_observed() and not scope().is_adapters_work


def _working_for_run() -> AbstractContextManager[Any]:
    """A block in which overridden pieces call each other and the pieces of their base class.

    These calls send no events: the run sends its adapter's events itself.
    """
    here = scope()
    return entered(Scope(here.overrides, here.frame, here.call, is_adapters_work=True))


def _events_around(
    begin: Callable[[str], Any], end: Callable[..., Any]
) -> AbstractContextManager[Callable[[Any], Any]]:
    return events_around(scope(), current().callbacks, begin, end)


class _NoFields:
    """A `FieldReader` that finds no fields."""

    def feed(self, text: str) -> list[tuple[str, str]]:
        del text
        return []

    def finish(self) -> list[tuple[str, str]]:
        return []


def _cut_field(raw: Mapping[str, Any], response: Response) -> str:
    """The field in which the answer breaks off, or "".

    After a whole value comes an end tag or marker, or it is JSON with its own end.
    """
    if not raw:
        return ""
    name = list(raw)[-1]
    value = raw[name]
    if not isinstance(value, str) or value[:1] + value[-1:] in {"{}", "[]"}:
        return ""
    if not (response.text or "").rstrip().endswith(value):
        return ""
    return name


def _outside_fields(
    adapter: Adapter, signature: type[Signature], text: str, raw: Mapping[str, Any]
) -> str:
    """The part of an answer that may hold calls: a call that a field quotes is not made."""
    if output_spec(signature).is_complete(raw):
        return adapter.outside(signature, text)
    return text


def _refuse_unknown(choice: str | Mapping[str, Any], tools: Declarations) -> None:
    name: Any = choice
    if isinstance(name, Mapping):
        name = cast("Mapping[str, Any]", name).get("function", name)
    if isinstance(name, Mapping):
        name = cast("Mapping[str, Any]", name).get("name")
    known = [tool["function"]["name"] for tool in tools]
    if name not in {"auto", "none", "required", *known}:
        names = ", ".join(f"`{tool}`" for tool in known)
        msg = (
            f"`tool_choice` is `auto`, `none`, `required` or one of the tools {names}; "
            f"found {shown(choice)}."
        )
        raise ToolCallError("invalid_request", msg, raw=choice)


def _rebuild(kind: type[Adapter], attributes: Mapping[str, Any]) -> Adapter:
    adapter = object.__new__(kind)
    for name, value in attributes.items():
        object.__setattr__(adapter, name, value)
    return adapter
