"""`History`: earlier turns of a conversation, as the value of an input field.

It contains turns of fields (`{"question": ..., "answer": ...}`, DSPy's form), chat messages
(`{"role": ..., "content": ...}`), or both. All are dicts, so that a history is plain JSON data for
a program. Adapters put them before the current question as messages.

A message is a `HistoryMessage`: a dict in OpenAI's form that also remembers the `Message` from
which it was made, because OpenAI's form lacks some of its data (native reasoning, parts of
providers). The dict has the last word: a program that changes it gets what the dict then says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from msgspec.structs import replace
from pydantic import ConfigDict, Field, field_validator, model_validator

from ferrule.encoding.copied import copy_json
from ferrule.encoding.encode import json_text, jsonable
from ferrule.encoding.pattern import pattern
from ferrule.errors import InputError, ToolCallError, shown
from ferrule.record import CheckedModel
from ferrule.values.calls.call import ToolCall
from ferrule.values.content.convert import content_text, marked_parts, read_content, read_marked
from ferrule.values.content.parts import Part
from ferrule.values.content.type import Type
from ferrule.values.conversation.compact import compact_entries
from ferrule.values.conversation.message import (
    Message,
    Role,
    openai_content,
    openai_message,
    tool_message,
)

if TYPE_CHECKING:
    from ferrule.values.calls.call import ToolResult

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_MESSAGE_KEYS = ("content", "tool_calls", "tool_call_id")
"""A message has one of these keys. A turn may have a field called `role`, too."""
_EXTRA_FIELDS = ("name", "is_error", "reasoning", "extra")
"""Fields of `Message` that OpenAI's form lacks. A message's dict has them under these names."""
_ADAPTER_MARKS = pattern(r"(?<=\[)\[(?=[ \t]*##)|<(?=/?\w+_\d+\s*>)")
"""The first characters of field markers (`[[ ## answer ## ]]`) and of step tags (`<thought_0>`)."""


class HistoryMessage(dict[str, Any]):
    """A chat message as a JSON-serializable dict in OpenAI's form.

    It also has the attributes of `Message`: `message.text`.
    """

    __slots__ = ("_message",)

    def __init__(self, form: Mapping[str, Any], message: Message | None = None) -> None:
        super().__init__(form)
        self._message = message

    @classmethod
    def of(cls, source: Message | Mapping[str, Any]) -> HistoryMessage:
        """Make a message of a history.

        It keeps a `Message` for the data that OpenAI's form lacks, and uses it until the dict
        changes.
        """
        if isinstance(source, HistoryMessage):
            return deepcopy(source)
        if isinstance(source, Message):
            return cls(_form(source), source)
        if _holds_objects(source):
            # An invalid message raises its error where the history is used, not here: only there
            # is its position known.
            with suppress(InputError):
                message = _read(source, 0)
                return cls({**source, **_form(message)}, message)
        return cls(source)

    @property
    def message(self) -> Message:
        """The message as a `Message`. Raises `InputError` if the dict is not a valid message."""
        return self.read(0)

    def read(self, index: int) -> Message:
        """`message`, for the message at this position.

        Calls without an id get one made from the position.
        """
        if self._message is not None and _form(self._message) == self:
            return self._message
        return _parse(self, index)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.message, name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Message):
            return self.message == other
        return super().__eq__(other)

    # Like any dict, a message can change, and has no hash.
    __hash__ = None

    def __deepcopy__(self, memo: dict[int, Any]) -> HistoryMessage:
        return HistoryMessage(copy_json(dict(self)), self._message)


class History(CheckedModel, Type):
    """Earlier turns of a conversation, oldest first.

    The `add_...` methods change it; programs never change their input.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    messages: list[Any] = Field(default_factory=list[Any])
    """Turns of fields (mappings without a `role`) and messages.

    Messages are dicts in OpenAI's form that also have the attributes of `Message`.
    """

    def __init__(self, messages: Iterable[Any] | None = None, **unknown: Any) -> None:
        if messages is None:
            messages = []
        super().__init__(**{"messages": messages, **unknown})

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_list(cls, data: Any) -> Any:
        if isinstance(data, (list, tuple)):
            return {"messages": list(cast("Iterable[Any]", data))}
        if isinstance(data, (dict, History)):
            return cast("Any", data)
        if isinstance(data, Mapping) and "messages" in data:
            return cast("Any", data)
        raise ValueError(
            "must be a `History`, such as `prediction.history`, or a list of turns or messages"
        )

    @field_validator("messages", mode="before")
    @classmethod
    def _read_entries(cls, data: Any) -> Any:
        if isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Iterable):
            text = shown(cast("object", data))
            raise ValueError(f"must be a list of turns or messages, found {text}")
        entries = list(cast("Iterable[Any]", data))
        for i, entry in enumerate(entries):
            if not isinstance(entry, (Mapping, Message)):
                raise ValueError(
                    f"message {i} is neither a mapping nor a `Message`: {shown(entry)}"
                )
        return [_read_entry(entry) for entry in entries]

    # -- writing

    def add_message(
        self,
        role: Role | Message | Mapping[str, Any],
        content: Any = "",
        *,
        tool_calls: Iterable[Any] | None = None,
        tool_call_id: str | None = None,
    ) -> None:
        """Add a message, or a turn of fields.

        A system message goes to the start, and replaces an existing one there.
        """
        if isinstance(role, (Message, Mapping)):
            self._add_entry(role)
            return
        if role not in _ROLES:
            roles = ", ".join(sorted(_ROLES))
            raise InputError(f"The role of a message must be one of {roles}; found {shown(role)}.")
        entry: dict[str, Any] = {"role": role, "content": content}
        calls = [call.format() if isinstance(call, ToolCall) else call for call in tool_calls or ()]
        if calls:
            entry["tool_calls"] = calls
        if tool_call_id is not None:
            entry["tool_call_id"] = tool_call_id
        message = _read(entry, len(self.messages))
        if message.role == "system":
            self._replace_system(message)
        else:
            self.messages.append(HistoryMessage.of(message))

    def _add_entry(self, entry: Any) -> None:
        if not _is_message(entry):
            self.messages.append(entry)
        elif _read(entry, len(self.messages)).role == "system":
            self._replace_system(_read(entry, 0))
        else:
            self.messages.append(HistoryMessage.of(entry))

    def add_user_message(self, content: Any) -> None:
        """Add a user message."""
        self.add_message("user", content)

    def add_assistant_message(
        self, content: Any = "", tool_calls: Iterable[Any] | None = None
    ) -> None:
        """Add an assistant message and its calls (in any form that `ToolCall.read` accepts)."""
        self.add_message("assistant", content, tool_calls=tool_calls)

    def add_tool_result(self, tool_call_id: str, content: Any) -> None:
        """Add the result of a call; `content` that is not text or parts is written as JSON."""
        if not _is_content(content):
            content = json_text(content)
        self.add_message("tool", content, tool_call_id=tool_call_id)

    def add_tool_results(self, results: Iterable[ToolResult]) -> None:
        """Add the results of the last answer's calls, as `ToolCalls.execute_all` returns them.

        Results of native calls become tool messages. Results of calls that the model wrote as text
        become a user message.
        """
        results = list(results)
        native_ids = self._last_call_ids()
        if all(result.call_id in native_ids for result in results):
            self.messages += [HistoryMessage.of(tool_message(result)) for result in results]
            return
        listed = [
            {"name": result.name, "result": content_text(result.content)} for result in results
        ]
        # Marks are escaped, so that no result is read as a step of the model. In JSON, an adapter's
        # marks can only be in strings, where escapes are allowed.
        text = _ADAPTER_MARKS.sub(lambda mark: f"\\u{ord(mark[0]):04x}", json_text(listed))
        self.messages.append(HistoryMessage.of(Message("user", f"Results of your calls:\n{text}")))

    def _last_call_ids(self) -> set[str | None]:
        """The ids of the calls in the last assistant message."""
        for entry in reversed(self.messages):
            if _is_message(entry) and _role(entry) == "assistant":
                return {call.id for call in _read(entry, 0).tool_calls}
        return set()

    def set_system_message(self, content: Any) -> None:
        """Set the system message, which is the first."""
        self.add_message("system", content)

    def _replace_system(self, message: Message) -> None:
        self.messages[:] = [HistoryMessage.of(message), *after_system(self.messages)]

    def clear(self) -> None:
        """Remove all messages."""
        self.messages.clear()

    # -- reading

    # udspy's name; pydantic's method of this name is deprecated.
    def copy(self) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A deep copy."""
        # Validation copies messages (`HistoryMessage.of`), but not turns of fields.
        entries = [
            entry if type(entry) is HistoryMessage else deepcopy(entry) for entry in self.messages
        ]
        return type(self)(messages=entries)

    def compacted(self, tokens: int, strategy: str = "shorten", *, keep: int = 2) -> History:
        """A copy of at most about `tokens` tokens: a note takes the place of the oldest messages.

        `"shorten"` cuts the long results of tools first; `"drop"` does not. The newest `keep`
        messages stay. An answer with calls and their results count as one. Sizes are estimates: a
        quarter of the UTF-8 bytes.
        """
        return History(messages=compact_entries(self.entries(), tokens, strategy, keep=keep))

    def entries(self) -> list[Any]:
        """The messages as `Message`s, and the turns of fields."""
        return [
            _read(entry, i) if _is_message(entry) else entry
            for i, entry in enumerate(self.messages)
        ]

    def as_messages(
        self, render_turn: Callable[[Mapping[str, Any]], Iterable[Message]]
    ) -> list[Message]:
        """The history as messages, with turns rendered by `render_turn`.

        Raises `InputError` if calls and results do not match.
        """
        messages: list[Message] = []
        for i, entry in enumerate(self.messages):
            if _is_message(entry):
                messages.append(_read(entry, i))
            else:
                messages.extend(render_turn(entry))
        _check_results(messages)
        return messages

    def format(self) -> dict[str, Any]:
        """`{"messages": [...]}` as JSON data, which `History.model_validate` loads without loss."""
        return {"messages": [_dump(entry) for entry in self.messages]}

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return True  # an empty history is not a missing one

    # Over messages, not over fields as pydantic's.
    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return iter(self.messages)

    def __getitem__(self, index: int) -> Any:
        return self.messages[index]

    def __repr__(self) -> str:
        return f"History({len(self.messages)} messages)"

    __str__ = __repr__


def after_system(entries: Sequence[Any]) -> list[Any]:
    """The entries without the system message at their start: each model call writes its own.

    Later system messages stay.
    """
    if entries and _is_message(entries[0]) and _role(entries[0]) == "system":
        return [*entries[1:]]
    return [*entries]


def _role(entry: Any) -> Any:
    if isinstance(entry, Message):
        return entry.role
    return entry.get("role")


def _is_message(entry: Any) -> bool:
    """Whether an entry is a chat message; a turn may have a field called `role` too."""
    if isinstance(entry, Message):
        return True
    role = entry.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        return False
    return any(key in entry for key in _MESSAGE_KEYS)


def _is_content(value: Any) -> bool:
    """Whether a value is text, a part, or a tuple of parts: content that needs no encoding."""
    if isinstance(value, tuple):
        return all(isinstance(part, Type) for part in cast("tuple[Any, ...]", value))
    return isinstance(value, (str, Type))


def _read_entry(entry: Any) -> Any:
    if isinstance(entry, dict) and not isinstance(entry, HistoryMessage):
        # A loaded history has its images and other parts as marked JSON objects.
        entry = read_marked(entry)
    if _is_message(entry):
        return HistoryMessage.of(entry)
    return entry


def _holds_objects(form: Mapping[str, Any]) -> bool:
    """Whether a message has parts or calls of ferrule's classes, which are not JSON."""
    content = form.get("content")
    if isinstance(content, (Part, tuple)) or _has_instance(content, Part):
        return True
    return _has_instance(form.get("tool_calls"), ToolCall)


def _has_instance(items: Any, kind: Any) -> bool:
    if not isinstance(items, list):
        return False
    return any(isinstance(item, kind) for item in cast("list[Any]", items))


def _read(entry: Any, index: int) -> Message:
    if isinstance(entry, Message):
        return entry
    if isinstance(entry, HistoryMessage):
        return entry.read(index)
    return _parse(entry, index)


def _parse(entry: Mapping[str, Any], index: int) -> Message:
    role = entry["role"]
    if role == "developer":
        role = "system"  # OpenAI's newer word for the same
    try:
        calls = [ToolCall.read(call) for call in entry.get("tool_calls") or ()]
    except (ToolCallError, TypeError) as error:
        raise InputError(f"Message {index} of the history has invalid calls: {error}") from error
    for i, call in enumerate(calls):
        if not call.id:
            calls[i] = call.with_id(f"call_{index}_{i}")
    call_id = entry.get("tool_call_id")
    if not isinstance(call_id, str | None):
        raise InputError(
            f"Message {index} of the history has a `tool_call_id` that is not text: "
            f"{shown(call_id)}."
        )
    message = Message(role, read_content(entry.get("content")), tuple(calls), call_id)
    extra = {key: entry[key] for key in _EXTRA_FIELDS if entry.get(key) is not None}
    if extra:
        return replace(message, **extra)
    return message


def _form(message: Message) -> dict[str, Any]:
    """The message as a dict: in OpenAI's form, with the fields that this form lacks."""
    extra = {key: value for key in _EXTRA_FIELDS if (value := getattr(message, key))}
    return {**openai_message(message), **extra}


def _dump(entry: Any) -> Any:
    if not isinstance(entry, (Message, HistoryMessage)):
        return jsonable(marked_parts(entry))
    form = HistoryMessage.of(entry)
    content: Any = ""
    if form.get("content"):
        content = form.content
    # OpenAI's form loses data of some parts, such as the media type of a picture with an address.
    # Only such content is written with ferrule's marks.
    if not isinstance(content, str) and read_content(openai_content(content)) != content:
        form["content"] = marked_parts(content)
    return dict(form)


def _check_results(messages: list[Message]) -> None:
    """Check that each call has one result after it, and each result a call before it.

    Providers refuse anything else, with errors that do not name the message.
    """
    waiting: dict[str, str] = {}
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                raise InputError(
                    f"The history has a result for the call {message.tool_call_id!r}, but no such "
                    "call before it without a result."
                )
            del waiting[message.tool_call_id]
            continue
        if waiting:
            break
        waiting = {call.id or "": call.name for call in message.tool_calls}
    if waiting:
        calls = ", ".join(f"`{name}` ({call_id})" for call_id, name in waiting.items())
        raise InputError(
            f"The history has calls without a result: {calls}. "
            "Add each with `add_tool_result(id, content)`."
        )
