"""`Adapter`: renders signatures, inputs and steps as messages, and parses answers into outputs.

The base class holds what all adapters share; `request` is the one place that builds requests.
`ChatAdapter`, `JSONAdapter` and `XMLAdapter` define how fields look in a message, what an answer
must look like, and how to find the fields in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

from ferrule.adapters.direct import observed
from ferrule.adapters.overrides import adopt, compose, without_others_options
from ferrule.adapters.parse import output_spec, parse_outputs
from ferrule.adapters.pieces import Pieces, native_signature, whole_of
from ferrule.adapters.render import (
    Shown,
    as_read,
    field_description,
    join_pieces,
    shown_fields,
    task_description,
)
from ferrule.errors import AdapterParseError, ConfigurationError, ToolCallError, shown
from ferrule.record import MutableRecord, Record
from ferrule.values.content.convert import content_of
from ferrule.values.conversation.exchange import (
    NO_TOOLS,
    Capabilities,
    Declarations,
    Request,
    Response,
    Shape,
)
from ferrule.values.conversation.message import Message, Messages, make_message
from ferrule.values.signatures.compiled import compiled

if TYPE_CHECKING:
    from ferrule.values.content.convert import Piece
    from ferrule.values.content.parts import Content
    from ferrule.values.signatures.signature import Signature

_MOST_SHOWN = 400
_CALL_CODES = frozenset({"invalid_tool_calls", "invalid_tool_call", "invalid_tool_call_arguments"})
_NO_SETTINGS: Mapping[str, Any] = {}


class _PromptParts(Record):
    """The parts that all prompts of a signature share."""

    system: Message
    shown: Shown
    reminder: str


class _AnswerForm(MutableRecord):
    """The `AnswerForm` of a request: its JSON Schema, and outputs written as an answer."""

    adapter: Adapter
    signature: type[Signature]

    @property
    def schema(self) -> Mapping[str, Any]:
        return self.signature.plan.output_schema()

    def write(self, outputs: Mapping[str, Any]) -> str:
        adapter = self.adapter
        if adapter.replaced:
            return adapter.format_assistant_message_content(self.signature, outputs)
        return join_pieces(adapter.drawn_answer(as_read(self.signature, outputs)))


class Adapter(Pieces):
    """Base class of adapters. Immutable; safe to share between threads and tasks.

    A subclass overrides pieces of the prompt and `parse`, or defines its own form; its `__init__`
    may set its own attributes. A subclass that overrides a method of DSPy's or udspy's adapters
    that ferrule never calls raises `ConfigurationError` when it is defined.
    """

    use_native_function_calling: bool | None
    """Whether tool calls are native (True), written in the text (False), or native if the model supports it (None)."""
    fallback: Adapter | None
    """Adapter to retry with when an answer cannot be parsed, or None."""
    repairs: int
    """How many times the model is asked to correct an answer that cannot be parsed."""

    reads_values: ClassVar[bool] = False
    """Whether `raw_fields` returns decoded JSON values; otherwise it returns text."""

    __slots__ = ("fallback", "repairs", "use_native_function_calling")

    @without_others_options
    def __init__(
        self,
        *,
        use_native_function_calling: bool | None = None,
        fallback: Adapter | None = None,
        repairs: int = 1,
    ) -> None:
        if use_native_function_calling not in {None, True, False}:
            raise ConfigurationError(
                f"`use_native_function_calling` is True, False or None, found {shown(use_native_function_calling)}.",
            )
        if fallback is not None and not isinstance(fallback, Adapter):
            raise ConfigurationError(f"`fallback` is an adapter or None, found {shown(fallback)}.")
        if not isinstance(repairs, int) or isinstance(repairs, bool) or repairs < 0:
            raise ConfigurationError(
                f"`repairs` is a whole number of at least 0, found {shown(repairs)}.",
            )
        for name, value in (
            ("use_native_function_calling", use_native_function_calling),
            ("fallback", fallback),
            ("repairs", repairs),
        ):
            object.__setattr__(self, name, value)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adopt(cls, Adapter)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, name) or not hasattr(self, "__dict__"):
            raise AttributeError(f"An adapter is immutable (`{name}`): create another one.")
        object.__setattr__(self, name, value)  # an attribute of a subclass

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"An adapter is immutable (`{name}`): create another one.")

    def _settings(self) -> dict[str, Any]:
        names = ("use_native_function_calling", "fallback", "repairs")
        return {
            **{name: getattr(self, name) for name in names},
            **getattr(self, "__dict__", _NO_SETTINGS),
        }

    def __eq__(self, other: object) -> bool:
        return other is self or (
            type(other) is type(self) and cast("Adapter", other)._settings() == self._settings()
        )

    def __hash__(self) -> int:
        return hash((type(self), self.use_native_function_calling, self.fallback, self.repairs))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._settings().items())})"

    def __deepcopy__(self, memo: Any) -> Adapter:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self._settings()))

    # -- what programs use
    # ----------------------------------------------------------------------------------------

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
        drawn = self._prompt_parts(signature, native=native)
        messages = [drawn.system]
        demos = list(demos)
        if demos or drawn.shown.histories:
            from ferrule.adapters.demos import demo_messages, has_output, history_messages

            turn_fields = (
                drawn.shown if whole is None else self._prompt_parts(whole, native=native).shown
            )
            for i, demo in enumerate(demos):
                messages += demo_messages(
                    self,
                    drawn.shown if has_output(demo, drawn.shown) else turn_fields,
                    demo,
                    i,
                )
            for name in drawn.shown.histories:
                messages += history_messages(self, turn_fields, inputs.get(name))
        pieces = self._question(drawn.shown.inputs, inputs, drawn.reminder)
        if pieces or messages[-1].role != "user":
            messages.append(Message("user", content_of(pieces or ["Begin."])))
        return Messages(messages)

    def step_message(self, fields: Mapping[str, Any]) -> Message:
        """Render a finished step of a loop as a user message."""
        return make_message("user", content_of(self.drawn_fields(fields)))

    def answer_content(self, signature: type[Signature], outputs: Mapping[str, Any]) -> Content:
        """Render outputs as the answer that ends a conversation."""
        return content_of(self.drawn_answer(as_read(signature, outputs)))

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
        text = response.text
        raw = self.raw_fields(signature, text) if text else _NO_SETTINGS
        spec = output_spec(signature)
        has_calls = spec.calls is not None and bool(response.tool_calls)
        if tools and text and not has_calls and spec.calls is not None and spec.calls not in raw:
            calls, rest = _find_calls(
                self.outside(signature, text) if spec.is_complete(raw) else text,
                tools,
            )
            if calls:
                raw, text, has_calls = {**raw, spec.calls: calls}, rest, True
        is_value = self.reads_values
        if (
            text
            and (lenient or has_calls)
            and spec.text is not None
            and not (raw.keys() - {spec.calls})
        ):
            bare = self.outside(signature, text)
            if spec.is_bare(raw, bare):
                raw, is_value = {**raw, spec.text: bare}, False
        cut = (
            _cut_field(raw, response) if response.finish_reason == "length" and not is_value else ""
        )
        if text and "\\" in text and not is_value:
            raw = {
                name: self.unescape(name, found) if isinstance(found, str) else found
                for name, found in raw.items()
            }
        try:
            return parse_outputs(
                type(self).__name__,
                signature,
                spec,
                raw,
                response,
                is_value=is_value,
                cut=cut,
            )
        except AdapterParseError as error:
            if (
                spec.calls is None
                or error.code != "invalid_tool_calls"
                or not tools
                or response.tool_calls
            ):
                raise
            calls, _ = _find_calls(
                error.raw,
                tools,
            )  # the value of the output for calls, in another text form
            if not calls:
                raise
            return parse_outputs(
                type(self).__name__,
                signature,
                spec,
                {**raw, spec.calls: calls},
                response,
                is_value=is_value,
            )

    plain_read = read
    """`read` with the adapter's own form, even where a subclass overrides `parse`."""

    @observed
    def parse(self, signature: type[Signature], completion: str) -> dict[str, Any]:
        """Parse the text of an answer into typed outputs. Raises `AdapterParseError`."""
        return self.plain_read(signature, Response(completion))

    def shape(self, signature: type[Signature], capabilities: Capabilities | None) -> Shape | None:
        """The response format that the provider enforces, or None."""
        del signature, capabilities
        return None

    def outside(self, signature: type[Signature], text: str) -> str:
        """Return the text of an answer outside its fields."""
        del signature
        return text

    def repair_messages(
        self,
        signature: type[Signature],
        response: Response,
        error: AdapterParseError,
        *,
        native: bool = False,
    ) -> tuple[Message, ...]:
        """Render an answer that could not be parsed, with its problems, so that the model can correct it.

        Invalid native calls are rendered as text: providers reject calls without results.
        """
        problems = "\n".join(
            f"- `{name}`: {problem}" if name else f"- {problem}" for name, problem in error.problems
        )
        wrote = [
            f"{call.name or '(no name)'} {shown(call.arguments_text, _MOST_SHOWN)}"
            for call in response.tool_calls
        ]
        said = response.text or (f"(calls: {'; '.join(wrote)})" if wrote and native else "(empty)")
        again = (
            "Make all your calls again."
            if native and error.code in _CALL_CODES
            else "Write the whole answer again."
        )
        reminder = self._reminder(signature, native=native)
        asked = f"Your answer could not be read:\n{problems}\n\n{again} {reminder}".rstrip()
        return (Message("assistant", said), Message("user", asked))

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
        """Build the request for these messages. A request has tools or a response shape, never both.

        Tools come from the program and its inputs, in that order. Raises `ToolCallError`
        (`invalid_request`) for tools in `settings` and for the choice of an unknown tool.
        """
        kind: type[Any] = type(settings)
        if kind is not dict and not isinstance(
            settings,
            Mapping,
        ):  # `isinstance` with an abstract class takes ten times as long
            msg = f"The settings of a request are a mapping, found {shown(settings)}."
            raise ToolCallError("invalid_request", msg, raw=settings)
        if "tools" in settings or "messages" in settings:
            msg = "`tools` and `messages` are not settings of a request. Tools come with the program (`tools=`), or as inputs of type `Tool`."
            raise ToolCallError("invalid_request", msg, raw=settings)
        if not len(tools):
            shape = self.shape(
                signature,
                capabilities,
            )  # positional arguments below: keywords take half as long again
            return Request(
                messages,
                NO_TOOLS,
                None,
                None,
                shape,
                settings,
                _AnswerForm(self, signature),
            )
        if capabilities is not None and not capabilities.parallel_tools:
            parallel = None
        if tool_choice is not None:
            _refuse_unknown(tool_choice, tools)
        return Request(
            messages,
            tools,
            tool_choice,
            parallel,
            None,
            settings,
            _AnswerForm(self, signature),
        )

    def calls_natively(self, capabilities: Capabilities) -> bool:
        """Whether tool calls are native with a model that has these capabilities."""
        return self.use_native_function_calling is not False and capabilities.native_tools

    # -- messages
    # -------------------------------------------------------------------------------------------------

    def _prompt_parts(self, signature: type[Signature], *, native: bool) -> _PromptParts:
        kind = self if getattr(self, "__dict__", None) else type(self)
        kept, key = compiled(signature).kept, (kind, native)
        return (
            kept[key]
            if key in kept
            else kept.setdefault(key, self._build_prompt_parts(signature, native=native))
        )

    def _build_prompt_parts(self, signature: type[Signature], *, native: bool) -> _PromptParts:
        shown = shown_fields(signature, native=native)
        structure = self.structure(shown) if shown.outputs else ""
        parts = [field_description(shown), structure, task_description(signature, shown)]
        system = Message("system", "\n\n".join(part for part in parts if part))
        return _PromptParts(system, shown, self.reminder(list(shown.outputs)))

    def _reminder(self, signature: type[Signature], *, native: bool) -> str:
        if self.replaced:
            return self.user_message_output_requirements(
                native_signature(signature) if native else signature,
            )
        return (
            self._prompt_parts(signature, native=True).reminder
            if native
            else self.reminder(list(signature.plan.outputs))
        )

    def _opening(
        self,
        signature: type[Signature],
        demos: Iterable[Any],
        inputs: Mapping[str, Any],
    ) -> Messages:
        return (
            compose(self, signature, demos, inputs, whole_of(signature))
            if self.replaced
            else self.opening(signature, inputs, demos=demos)
        )

    def _question(
        self,
        fields: Iterable[str],
        inputs: Mapping[str, Any],
        reminder: str,
    ) -> list[Piece]:
        given = {name: inputs[name] for name in fields if name in inputs}
        pieces = self.drawn_fields(given) if given else []
        if not reminder:
            return pieces
        return [*pieces, f"\n\n{reminder}" if pieces else reminder]


def _cut_field(raw: Mapping[str, Any], response: Response) -> str:
    """The field in which the answer breaks off, or "". After a whole value comes an end tag or marker, or it is JSON with its own end."""
    *_, name = ("", *raw)
    value = raw.get(name)
    if not isinstance(value, str) or value[:1] + value[-1:] in {"{}", "[]"}:
        return ""
    return name if (response.text or "").rstrip().endswith(value) else ""


def _find_calls(text: Any, tools: Iterable[Any]) -> tuple[list[dict[str, Any]], str]:
    from ferrule.text_calls.find import find  # late: few answers need it

    return find(text, tools) if isinstance(text, str) else ([], "")


def _refuse_unknown(choice: str | Mapping[str, Any], tools: Declarations) -> None:
    named: Any = choice.get("function", choice) if isinstance(choice, Mapping) else choice
    name = cast("Mapping[str, Any]", named).get("name") if isinstance(named, Mapping) else named
    known = [tool["function"]["name"] for tool in tools]
    if name not in {"auto", "none", "required", *known}:
        names = ", ".join(f"`{each}`" for each in known)
        msg = f"`tool_choice` is `auto`, `none`, `required` or one of the tools {names}; found {shown(choice)}."
        raise ToolCallError("invalid_request", msg, raw=choice)


def _rebuild(kind: type[Adapter], settings: Mapping[str, Any]) -> Adapter:
    made = object.__new__(kind)
    for name, value in settings.items():
        object.__setattr__(made, name, value)
    return made
