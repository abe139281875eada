"""What goes to a model and what comes back: `Request`, `Response`, `Delta`, `Usage`, `Capabilities`, `Shape`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from ferrule.values.conversation.message import Message, Messages
from ferrule.values.encoding.encode import json_bytes
from ferrule.values.record import Changing, Record, field

if TYPE_CHECKING:
    from ferrule.values.calls.call import ToolCall

T = TypeVar("T")


class Usage(Record):
    """Tokens of one call or of many; sums with `+`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The share of `input_tokens` that the provider read from its prompt cache."""
    calls: int = 0
    """How many model calls these tokens are of."""

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.calls + other.calls,
        )


class Capabilities(Record):
    """What a model can do, as far as is known; programs choose their mode by it."""

    native_tools: bool = True
    """Takes tool declarations and answers with structured calls."""
    parallel_tools: bool = True
    json_schema: bool = False
    """Keeps its answer to a JSON schema."""
    streaming: bool = True
    images: bool = False
    audio: bool = False
    context_tokens: int | None = None
    json_object: bool = False
    """Keeps its answer to some JSON object."""


class Shape(Record):
    """What the text of an answer must look like."""

    kind: Literal["json_object", "json_schema"]
    schema: Mapping[str, Any] | None = None
    """The JSON schema, for `json_schema`."""
    name: str = "answer"


class Declarations(Sequence[dict[str, Any]]):
    """Tools in the canonical form, in order, with their JSON made once. Not to be changed after it was made."""

    __slots__ = ("_json", "_kept", "tools")

    def __init__(self, tools: Iterable[dict[str, Any]] = ()) -> None:
        self.tools = tuple(tools)
        """`{"type": "function", "function": {"name", "description", "parameters"}}` each."""
        self._json: bytes | None = None
        self._kept: dict[Any, Any] = {}

    def kept(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` gives, made once for these tools and key: for all that is derived of them elsewhere."""
        return self._kept[key] if key in self._kept else self._kept.setdefault(key, make())

    @property
    def json(self) -> bytes:
        """The list as JSON bytes."""
        if self._json is None:
            self._json = json_bytes(self.tools)
        return self._json

    def __len__(self) -> int:
        return len(self.tools)

    def __getitem__(self, index: Any) -> Any:
        return self.tools[index]  # pyright: ignore[reportUnknownVariableType]  a declaration, or a tuple of them

    def __eq__(self, other: object) -> bool:
        # Not by the dicts: to them `1` is `True` and order is nothing, but a model reads the JSON.
        return isinstance(other, Declarations) and self.json == other.json

    def __hash__(self) -> int:
        return hash(self.json)

    def __repr__(self) -> str:
        return f"Declarations({list(self.tools)!r})"


NO_TOOLS = Declarations()
_BARE = frozenset({type(None), bool, str})


class AnswerForm(Protocol):
    """The outputs of an answer, and how its text is written: for models that do not read prompts."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the object of outputs."""
        ...

    def write(self, outputs: Mapping[str, Any]) -> str:
        """The text of an answer with these outputs."""
        ...


class Request(Changing):
    """One question to a model. Treated as immutable: `following` gives the next one of the same conversation."""

    messages: Messages
    tools: Declarations = NO_TOOLS
    tool_choice: str | Mapping[str, Any] | None = None
    """`"auto"`, `"none"`, `"required"`, or OpenAI's form that names one tool."""
    parallel: bool | None = None
    """Whether several calls in one answer are welcome; None leaves it to the provider."""
    shape: Shape | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sampling: `temperature`, `max_tokens`, `stop`, `seed`, `top_p`, and what else a provider knows."""
    form: AnswerForm | None = field(default=None, repr=False, compare=False)
    """The form of the answer's text, set by the adapter. Not sent, and no part of the digest."""
    _fixed: str | None = field(default=None, init=False, repr=False, compare=False)

    def following(self, messages: Messages) -> Request:
        """The same request over another state of the conversation; what was computed of the rest is kept."""
        following = Request(messages, self.tools, self.tool_choice, self.parallel, self.shape, self.settings, self.form)
        following._fixed = self._fixed
        return following

    @property
    def digest(self) -> str:
        """A hexadecimal name for all that the model is asked: costs the same at the thousandth step as at the first."""
        if self._fixed is None:
            choice, parallel = self.tool_choice, self.parallel
            # `1` is `True` as a key, and not in JSON.
            is_bare = type(choice) in _BARE and type(parallel) in _BARE and self.shape is None and not self.settings
            self._fixed = self.tools.kept((Request, choice, parallel), self._digest_of_rest) if is_bare else self._digest_of_rest()
        return f"{self.messages.digest.hex()[:20]:0>20}{self._fixed}"

    def _digest_of_rest(self) -> str:
        """The digest of all but the messages: nothing of it changes from step to step."""
        rest = (self.tool_choice, self.parallel, self.shape, dict(self.settings))
        return sha256(self.tools.json + json_bytes(rest)).hexdigest()[:12]


class Response(Record):
    """One answer of a model, whoever gave it."""

    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    finish_reason: str | None = None
    """`stop`, `tool_calls`, `length`, `content_filter`, or the provider's own word."""
    refusal: str | None = None
    usage: Usage = Usage()
    model: str | None = None
    cost: float | None = None
    """US dollars, where the provider says."""
    extra: Mapping[str, Any] | None = None
    """What the provider wants back unchanged in the next request."""
    raw: Any = field(default=None, compare=False, repr=False)
    """The provider's own answer; never journalled."""

    def message(self) -> Message:
        """The answer as the assistant's message of the conversation."""
        return Message("assistant", self.text or "", self.tool_calls, reasoning=self.reasoning or "", extra=self.extra)


class Delta(Record):
    """A piece of a streamed answer. A stream is any number of these and then one `Response`, which is the whole."""

    text: str = ""
    reasoning: str = ""


class FieldReader(Protocol):
    """Splits streamed text into the signature's fields as it comes; an adapter makes one for each answer."""

    def feed(self, text: str) -> Sequence[tuple[str, str]]:
        """The next piece of text; returns `(field name, piece of its value)` pairs that are certain by now."""
        ...

    def finish(self) -> Sequence[tuple[str, str]]:
        """The text has ended: what was held back because it might have become a marker."""
        ...
