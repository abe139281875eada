"""Requests to a model and its responses: `Request`, `Response`, `Usage`, and a stream's `Delta`.

They have one form for all providers; a wire translates it. Treat all of them as immutable: the
journal, observers and caches share them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from math import fsum
from operator import add
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast, runtime_checkable

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic_core import from_json

from ferrule.encoding.encode import json_bytes
from ferrule.errors import ConfigurationError, nearest, shown
from ferrule.record import CheckedStruct, PartlyCompared
from ferrule.values.calls.call import ToolCall
from ferrule.values.calls.confidence import Token
from ferrule.values.calls.secrets import Secrets
from ferrule.values.conversation.message import Message, Messages
from ferrule.values.provider_tools import PROVIDER_TOOLS, Citation, ProviderCall, ProviderTool

T = TypeVar("T")


class Usage(PartlyCompared, Struct, metaclass=CheckedStruct, frozen=True):
    """Tokens of one or more model calls, and their cost. Usages can be added with `+`."""

    _not_compared = frozenset({"by_model"})
    _not_shown = frozenset({"by_model", "provider_calls"})  # most answers have neither

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of `input_tokens` that the provider read from its prompt cache."""
    calls: int = 0
    """The number of model calls."""
    reasoning_tokens: int = 0
    """The part of `output_tokens` that are thoughts, if the provider reports it."""
    cache_write_tokens: int = 0
    """The part of `input_tokens` that the provider wrote to its prompt cache."""
    cost: float | None = None
    """The cost of a run's calls in US dollars; None if the cost of any call is unknown.

    A single answer has `Response.cost`.
    """
    by_model: Mapping[str, Usage] = field(default_factory=dict[str, "Usage"])
    """The usage of each model in a run, by `Response.model`; `""` for answers without one."""
    provider_calls: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often the provider ran its own tools, by their kind, such as `web_search`.

    Providers charge for some of them by the call.
    """

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        models = {**self.by_model}
        for name, usage in other.by_model.items():
            models[name] = models.get(name, Usage()) + usage
        counts = map(add, self.counts, other.counts)
        # A usage without calls and without a cost does not make the sum unknown.
        priced = [usage for usage in (self, other) if usage.calls or usage.cost is not None]
        cost = total_cost([usage.cost for usage in priced])
        provider_calls = sum_counts([self.provider_calls, other.provider_calls])
        return Usage(*counts, cost=cost, by_model=models, provider_calls=provider_calls)

    @property
    def counts(self) -> tuple[int, int, int, int, int, int]:
        """The numbers of tokens and of model calls, in the order of the fields."""
        return (
            self.input_tokens,
            self.output_tokens,
            self.cached_tokens,
            self.calls,
            self.reasoning_tokens,
            self.cache_write_tokens,
        )


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of several counts by name."""
    total: dict[str, int] = {}
    for names in counts:
        for name, count in names.items():
            total[name] = total.get(name, 0) + count
    return total


def total_cost(costs: Sequence[float | None]) -> float | None:
    """The sum of costs; None if any of them is unknown, or if there are none."""
    known = [cost for cost in costs if cost is not None]
    if not known or len(known) < len(costs):
        return None
    return fsum(known)


Calls = Literal["native", "prompted", "constrained"]
"""How a model calls tools.

`native`: the request declares the tools, and the answer has structured calls. `prompted`: the
prompt describes the tools, and the calls are in the text of the answer. `constrained`: as `native`,
and the provider lets the model write only calls that fit the declarations.
"""

SchemaTarget = Literal["openai-strict", "anthropic", "gemini"]
"""A dialect of JSON Schema that providers enforce."""


class Capabilities(Struct, metaclass=CheckedStruct, frozen=True):
    """The features that a model supports. Programs choose the form of their requests by them."""

    native_tools: bool = True
    """Accepts tool declarations and answers with structured calls."""
    parallel_tools: bool = True
    json_schema: bool = False
    """Can constrain its answer to a JSON schema."""
    streaming: bool = True
    images: bool = False
    audio: bool = False
    context_tokens: int | None = None
    json_object: bool = False
    """Can constrain its answer to a JSON object."""
    constrained_calls: bool = False
    """Can constrain its answer to a valid call of a declared tool."""
    schema_target: SchemaTarget | None = None
    """The dialect of JSON Schema in which the provider enforces the outputs of programs.

    `LM` sets it for models with `json_schema`, by their wire. With None, the prompt asks for the
    outputs, and nothing enforces them.
    """
    schema_with_tools: bool = False
    """Whether a request may have both tools and a schema, which then holds for text without calls.

    Servers of open models constrain the whole answer, so their models could not call.
    """
    shows_schema: bool = False
    """Whether the provider shows the schema to its model, so that the prompt need not describe it.

    Servers of open models only constrain the next token: the model knows the schema only from its
    prompt.
    """
    provider_tools: tuple[str, ...] | None = None
    """The kinds of tools that the provider runs itself, such as `web_search`.

    `LM` sets it by the provider and the wire. None counts as none.
    """

    def can(self, what: str | ProviderTool | type[ProviderTool]) -> bool:
        """Whether the model has a feature: a field here, such as `"images"`, or a provider's tool.

        A tool is named by its kind (`"web_search"`), its class or a declaration. Raises
        `ConfigurationError` for a feature that no model has.
        """
        if not isinstance(what, str):
            what = what.kind
        if what in PROVIDER_TOOLS:
            return what in (self.provider_tools or ())
        if what in _FEATURES:
            return bool(getattr(self, what))
        names = (*PROVIDER_TOOLS, *_FEATURES)
        near = nearest(what, names)
        hint = f"one of {', '.join(names)}"
        if near is not None:
            hint = f"perhaps `{near}`"
        raise ConfigurationError(f"No feature of models is called {shown(what)}: {hint}.")


_FEATURES = tuple(
    name
    for name in Capabilities.__struct_fields__
    if name not in {"context_tokens", "schema_target", "provider_tools"}
)
"""The fields that say whether a model has a feature."""


class Shape(Struct, frozen=True):
    """The required form of an answer's text."""

    kind: Literal["json_object", "json_schema", "call"]
    """With `call`, the answer is a call of one of the request's tools that fits its schema.

    It may also be text, unless `tool_choice` demands a call.
    """
    schema: Mapping[str, Any] | None = None
    """The JSON schema, for `json_schema`."""
    name: str = "answer"
    strict: bool = False
    """Whether the schema is in the dialect that the provider enforces, and is sent as strict."""


class Declarations(Sequence[dict[str, Any]]):
    """Tool declarations in order, with their JSON made once. Immutable."""

    __slots__ = ("_cache", "_json", "tools")

    def __init__(self, tools: Iterable[dict[str, Any]] = ()) -> None:
        self.tools = tuple(tools)
        """`{"type": "function", "function": {"name", "description", "parameters"}}` each."""
        self._json: bytes | None = None
        self._cache: dict[Any, Any] = {}

    def cached_value(self, key: Any, make: Callable[[], T]) -> T:
        """The value of `make()`, made once for these tools and `key`.

        It caches what other modules derive from the declarations.
        """
        if key not in self._cache:
            # Two threads may both make the value; both get the first one.
            self._cache.setdefault(key, make())
        return self._cache[key]

    @property
    def json(self) -> bytes:
        """The list as JSON bytes."""
        if self._json is None:
            self._json = json_bytes(self.tools)
        return self._json

    def __len__(self) -> int:
        return len(self.tools)

    def __getitem__(self, index: Any) -> Any:
        # A declaration, or a tuple of them.
        return self.tools[index]  # pyright: ignore[reportUnknownVariableType]

    def __eq__(self, other: object) -> bool:
        # A model reads the JSON, in which `1` differs from `True` and the order of keys counts;
        # a comparison of dicts ignores both.
        return isinstance(other, Declarations) and self.json == other.json

    def __hash__(self) -> int:
        return hash(self.json)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy has no cache: some values that other modules derive cannot be copied.
        return Declarations, (self.tools,)

    def __repr__(self) -> str:
        return f"Declarations({list(self.tools)!r})"


NO_TOOLS = Declarations()


def declared_name(declaration: Mapping[str, Any]) -> str:
    """The name of a declared tool."""
    return declaration["function"]["name"]


def _by_name(tools: Declarations) -> dict[str, dict[str, Any]]:
    return {declared_name(tool): tool for tool in tools}


class AnswerForm(Protocol):
    """The outputs of an answer, and how to write them, for models that do not read prompts."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the object of outputs."""
        ...

    def write(self, outputs: Mapping[str, Any]) -> str:
        """The text of an answer with these outputs."""
        ...

    def outside(self, text: str) -> str:
        """The part of an answer that may hold calls.

        That is the text outside the fields if the answer is complete, and all of it otherwise.
        """
        ...


class ToolChange(Struct, frozen=True):
    """A point of a conversation from which on other tools are offered."""

    after: int
    """How many messages come before it."""
    added: Declarations = NO_TOOLS
    removed: tuple[str, ...] = ()
    """The names of tools that are no longer offered."""

    def applied_to(self, tools: Declarations) -> Declarations:
        """The tools that are offered after the change, if these were before."""
        remaining = [tool for tool in tools if declared_name(tool) not in self.removed]
        return Declarations((*remaining, *self.added))


class Request(PartlyCompared, Struct, metaclass=CheckedStruct):
    """One request to a model.

    Treat it as immutable: `following` returns the next one of the conversation.
    """

    _not_compared = _not_shown = frozenset({"form", "secrets", "first_tools", "tool_changes"})

    messages: Messages
    tools: Declarations = NO_TOOLS
    tool_choice: str | Mapping[str, Any] | None = None
    """`"auto"`, `"none"`, `"required"`, or OpenAI's form for one named tool."""
    parallel: bool | None = None
    """Whether one answer may hold several calls; None leaves it to the provider."""
    shape: Shape | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """`temperature`, `max_tokens`, `stop`, `seed`, and any other parameter of the provider."""
    form: AnswerForm | None = None
    """The form of the answer's text, set by the adapter. Not sent, and not part of the digest."""
    secrets: Secrets = field(default_factory=dict[str, Any])
    """By tool, the arguments that people see as stars. Not sent, and not part of the digest."""
    tool_changes: tuple[ToolChange, ...] = ()
    """Where in the conversation tools were added or removed, for providers that accept changes.

    A provider caches the beginning of a prompt, and other `tools` would change it. Not part of the
    digest.
    """
    first_tools: Declarations | None = None
    """The tools before the first of `tool_changes`; None if there are no changes."""
    provider_tools: tuple[ProviderTool, ...] = ()
    """Tools that the provider runs. A wire that cannot declare one raises before it sends."""

    if TYPE_CHECKING:  # the tools may also be a plain list, which `__post_init__` converts

        def __init__(
            self,
            messages: Messages,
            tools: Sequence[dict[str, Any]] = NO_TOOLS,
            tool_choice: str | Mapping[str, Any] | None = None,
            parallel: bool | None = None,
            shape: Shape | None = None,
            settings: Mapping[str, Any] = {},
            form: AnswerForm | None = None,
            secrets: Secrets = ...,
            tool_changes: tuple[ToolChange, ...] = (),
            first_tools: Declarations | None = None,
            provider_tools: tuple[ProviderTool, ...] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        # Anything else stays as it is: the driver explains it when it refuses the act.
        tools: Any = self.tools
        if not isinstance(tools, (list, tuple)):
            return
        declarations = cast("Sequence[Any]", tools)
        if all(isinstance(declaration, dict) for declaration in declarations):
            self.tools = Declarations(declarations)

    def following(self, messages: Messages) -> Request:
        """A copy with other messages."""
        return replace(self, messages=messages)

    def continuing(self, previous: Request) -> Request:
        """The request as the next one after `previous`, with the changes of its tools noted.

        No changes are noted if a tool was ever declared in another way, or if there were no tools
        before: the whole conversation then has the tools of this request.
        """
        first = previous.first_tools or previous.tools
        ever_declared = _by_name(first)
        for change in previous.tool_changes:
            ever_declared |= _by_name(change.added)
        before, now = _by_name(previous.tools), _by_name(self.tools)
        is_redeclared = any(ever_declared.get(name, tool) != tool for name, tool in now.items())
        if not before or is_redeclared:
            return replace(self, tool_changes=(), first_tools=None)
        added = [tool for name, tool in now.items() if name not in before]
        removed = tuple(name for name in before if name not in now)
        changes = previous.tool_changes
        if added or removed:
            changes = (*changes, ToolChange(len(self.messages), Declarations(added), removed))
        if not changes:
            first = None
        return replace(self, tool_changes=changes, first_tools=first)

    @property
    def digest(self) -> str:
        """A hexadecimal digest of the whole request.

        It costs the same in a long conversation: the digests of messages and tools are cached.
        """
        options = (self.tool_choice, self.parallel, self.shape, dict(self.settings))
        tools_hash = self.tools.cached_value("sha256", lambda: sha256(self.tools.json))
        rest_hash = tools_hash.copy()
        rest_hash.update(json_bytes(options))
        if self.provider_tools:
            rest_hash.update(json_bytes([tool.declaration() for tool in self.provider_tools]))
        messages_digest = self.messages.digest.hex()[:20]
        # The first 20 digits are the messages', zeros without any; the last 12 are the rest's.
        return f"{messages_digest:0>20}{rest_hash.hexdigest()[:12]}"


class Response(PartlyCompared, Struct, metaclass=CheckedStruct, frozen=True, dict=True):
    """One answer of a model, in the same form for all providers."""

    _not_compared = frozenset({"body", "answered_by"})
    _not_shown = frozenset({"body", "answered_by", "tokens"})

    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    finish_reason: str | None = None
    """`stop`, `tool_calls`, `length`, `content_filter`, or the provider's own word."""
    refusal: str | None = None
    usage: Usage = Usage()
    model: str | None = None
    cost: float | None = None
    """In US dollars: as the provider reports it, otherwise computed from the setting `prices`.

    None if it is unknown.
    """
    extra: Mapping[str, Any] | None = None
    """Data that the provider needs back unchanged in the next request."""
    body: Any = None
    """The provider's own answer: its JSON as bytes, or another object. Not journalled."""
    others: tuple[Response, ...] = ()
    """The other answers to a request for several (`n`)."""
    answered_by: str | None = None
    """The name of the model that answered, where several were asked. Not journalled."""
    tokens: tuple[Token, ...] = ()
    """The tokens of the answer with their log-probabilities, if they were asked for.

    The setting `confidence=True` asks for them.
    """
    provider_calls: tuple[ProviderCall, ...] = ()
    """The calls that the provider ran itself, in order."""
    citations: tuple[Citation, ...] = ()
    """The sources that the text cites, in order."""

    @cached_property
    def raw(self) -> Any:
        """The provider's own answer, decoded when it is first read.

        Few programs read it, and its objects would stay in memory with the conversation.
        """
        if isinstance(self.body, bytes):
            return from_json(self.body)
        return self.body

    def message(self) -> Message:
        """The answer as an assistant message."""
        return Message(
            "assistant",
            self.text or "",
            self.tool_calls,
            reasoning=self.reasoning or "",
            extra=self.extra,
        )

    def deltas(self) -> Iterator[Delta]:
        """The answer as a stream whose pieces all arrive at once."""
        # Before the text: text that comes before a provider's call does not count as the answer.
        for provider_call in self.provider_calls:
            yield Delta(provider_call=provider_call)
        if self.text or self.reasoning:
            yield Delta(self.text or "", self.reasoning or "")
        for index, call in enumerate(self.tool_calls):
            yield Delta(call=CallPiece(index, call.id or "", call.name, call.arguments_text))


def has_answer(response: Response) -> bool:
    """Whether an answer has anything outside its thoughts."""
    text = response.text or ""
    return bool(response.tool_calls) or bool(text and not text.isspace())


class CallPiece(Struct, metaclass=CheckedStruct, frozen=True):
    """A piece of a streamed tool call."""

    index: int
    """Distinguishes the calls of one answer: 0 for the first that began."""
    id: str = ""
    """The provider's id, as far as it is known."""
    name: str = ""
    """The tool's name, as far as it is known; complete when the arguments begin."""
    arguments: str = ""
    """The next piece of the arguments' JSON text."""


class Delta(PartlyCompared, Struct, metaclass=CheckedStruct, frozen=True):
    """A piece of a streamed answer.

    A stream is any number of these, then one `Response` with the whole answer.
    """

    _not_compared = _not_shown = frozenset({"so_far"})

    text: str = ""
    reasoning: str = ""
    call: CallPiece | None = None
    so_far: Response | None = None
    """The model and the tokens so far, if the server sends them early.

    If the request is cut off, these tokens are counted.
    """
    provider_call: ProviderCall | None = None
    """A call of the provider that begins (with `is_running`) or has ended."""
    is_running: bool = False
    """Whether `provider_call` has begun and not ended: its arguments may come later."""


class FieldReader(Protocol):
    """Splits streamed text into the signature's fields; an adapter makes one for each answer."""

    def feed(self, text: str) -> Sequence[tuple[str, str]]:
        """Take the next piece of text.

        Returns the `(field name, piece of its value)` pairs that are certain by now.
        """
        ...

    def finish(self) -> Sequence[tuple[str, str]]:
        """End the text; returns the pieces that were held back as a possible marker."""
        ...


@runtime_checkable
class CallReader(FieldReader, Protocol):
    """A `FieldReader` for answers whose calls contain fields, too."""

    text_field: str
    """The field whose value the text is, as far as it is known; empty for none."""

    def begin_calls(self) -> Sequence[tuple[str, str]]:
        """End the text before the first call; returns the pieces that were held back."""
        ...

    def note_rescued(self, rest: str) -> None:
        """Note that the whole text held calls; `rest` is the text without them."""
        ...

    def take_back(self) -> str | None:
        """What remains of the text that was returned as `text_field`, if it was not its value.

        Asked after `finish`, before its pieces are used.
        """
        ...

    def feed_call(self, piece: CallPiece) -> Sequence[tuple[str, str]]:
        """Take the next piece of a call; returns pieces as `feed` does."""
        ...


exchanges: deque[tuple[Any, Request, Response | str]] = deque(maxlen=100)
"""The latest model calls of the process, for `inspect_history`: `(model, request, response)`.

A failed call has its error as text.
"""
