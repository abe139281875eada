"""`History`: earlier turns of a conversation, as the value of an input field.

It contains turns of fields (`{"question": ..., "answer": ...}`, DSPy's form), chat messages
(`{"role": ..., "content": ...}`), or both. All are dicts. Adapters put them before the current
question as messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from msgspec.structs import replace
from pydantic import ConfigDict, Field, field_validator, model_validator

from ferrule.encoding.encode import json_text, jsonable
from ferrule.encoding.pattern import pattern
from ferrule.errors import InputError, ToolCallError, shown
from ferrule.values.calls.call import ToolCall
from ferrule.values.content.convert import content_text, marked_parts, read_content, read_marked
from ferrule.values.content.parts import Part
from ferrule.values.content.type import Type
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
_OF_MESSAGES = ("content", "tool_calls", "tool_call_id")
_MARKS = pattern(r"(?<=\[)\[(?=[ \t]*##)|<(?=/?\w+_\d+\s*>)")
"""The first characters of field markers, and of step tags."""
_EXTRA_FIELDS = ("name", "is_error", "reasoning", "extra")


class HistoryMessage(dict[str, Any]):
    """A chat message as a JSON-serializable dict in OpenAI's form. It also has the attributes of `Message`: `message.text`."""

    __slots__ = ("_message",)

    def __init__(self, form: Mapping[str, Any], message: Message | None = None) -> None:
        super().__init__(form)
        self._message = message

    @classmethod
    def of(cls, given: Message | Mapping[str, Any]) -> HistoryMessage:
        """Make a message of a history. It keeps a `Message` for the data that OpenAI's form lacks, and uses it until the dict changes."""
        if isinstance(given, HistoryMessage):
            return deepcopy(given)
        if isinstance(given, Message):
            return cls(_form(given), given)
        content, calls = given.get("content"), given.get("tool_calls")
        with suppress(InputError):  # raised where the history is used
            if (
                isinstance(content, (Part, tuple))
                or _holds(content, Part)
                or _holds(calls, ToolCall)
            ):
                message = _read(given, 0)
                return cls({**given, **_form(message)}, message)
        return cls(given)

    @property
    def message(self) -> Message:
        """The message as a `Message`. Raises `InputError` if the dict is not a valid message."""
        return self.read(0)

    def read(self, index: int) -> Message:
        """`message`, for the message at this position: calls without an id get one made from the position."""
        kept = self._message
        return kept if kept is not None and _form(kept) == self else _parse(self, index)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.message, name)

    def __eq__(self, other: object) -> bool:
        return self.message == other if isinstance(other, Message) else super().__eq__(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  as of any dict

    def __deepcopy__(self, memo: dict[int, Any]) -> HistoryMessage:
        return HistoryMessage(_copied(dict(self)), self._message)


class History(Type):
    """Earlier turns of a conversation, oldest first. The `add_...` methods change it; programs never change their input."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    messages: list[Any] = Field(default_factory=list[Any])
    """Turns of fields (mappings without a `role`) and messages: dicts in OpenAI's form that also have the attributes of `Message`."""

    def __init__(self, messages: Iterable[Any] | None = None, **unknown: Any) -> None:
        super().__init__(**{"messages": [] if messages is None else messages, **unknown})

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, given: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return {"messages": list(cast("Iterable[Any]", given))}
        if isinstance(given, (dict, History)) or (
            isinstance(given, Mapping) and "messages" in given
        ):
            return cast("Any", given)
        raise ValueError(
            "must be a `History`, such as `prediction.history`, or a list of turns or messages",
        )

    @field_validator("messages", mode="before")
    @classmethod
    def _each_is_a_turn(cls, given: Any) -> Any:
        if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
            msg = f"must be a list of turns or messages, found {shown(cast('object', given))}"
            raise ValueError(msg)
        entries = list(cast("Iterable[Any]", given))
        for i, entry in enumerate(entries):
            if not isinstance(entry, (Mapping, Message)):
                raise ValueError(
                    f"message {i} is neither a mapping nor a `Message`: {shown(entry)}",
                )
        return [_entry(each) for each in entries]

    # -- writing
    # --------------------------------------------------------------------------------------------------

    def add_message(
        self,
        role: Role | Message | Mapping[str, Any],
        content: Any = "",
        *,
        tool_calls: Iterable[Any] | None = None,
        tool_call_id: str | None = None,
    ) -> None:
        """Add a message, or a turn of fields. A system message goes to the start, and replaces an existing one there."""
        if isinstance(role, (Message, Mapping)):
            added: Any = role
            if _is_message(added) and _read(added, len(self.messages)).role == "system":
                self._set_system(_read(added, 0))
            else:
                self.messages.append(HistoryMessage.of(added) if _is_message(added) else added)
            return
        if role not in _ROLES:
            raise InputError(
                f"The role of a message must be one of {', '.join(sorted(_ROLES))}; found {shown(role)}.",
            )
        calls = [each.format() if isinstance(each, ToolCall) else each for each in tool_calls or ()]
        entry = {"role": role, "content": content, **({"tool_calls": calls} if calls else {})}
        message = _read(
            {**entry, **({"tool_call_id": tool_call_id} if tool_call_id is not None else {})},
            len(self.messages),
        )
        if message.role == "system":
            self._set_system(message)
        else:
            self.messages.append(HistoryMessage.of(message))

    def add_user_message(self, content: Any) -> None:
        """Add a user message."""
        self.add_message("user", content)

    def add_assistant_message(
        self,
        content: Any = "",
        tool_calls: Iterable[Any] | None = None,
    ) -> None:
        """Add an assistant message and its calls (in any form that `ToolCall.read` accepts)."""
        self.add_message("assistant", content, tool_calls=tool_calls)

    def add_tool_result(self, tool_call_id: str, content: Any) -> None:
        """Add the result of a call; `content` that is not text or parts is written as JSON."""
        parts: list[Any] = (
            list(cast("tuple[Any, ...]", content)) if isinstance(content, tuple) else [content]
        )
        is_content = isinstance(content, str) or all(isinstance(part, Type) for part in parts)
        self.add_message(
            "tool",
            content if is_content else json_text(cast("object", content)),
            tool_call_id=tool_call_id,
        )

    def add_tool_results(self, results: Iterable[ToolResult]) -> None:
        """Add the results of the last answer's calls, as `ToolCalls.execute_all` returns them.

        Results of native calls become tool messages. Results of calls that the model wrote as text
        become a user message.
        """
        found = list(results)
        last = next(
            (
                each
                for each in reversed(self.messages)
                if _is_message(each) and _role(each) == "assistant"
            ),
            None,
        )
        made = (
            {call.id for call in _read(last, 0).tool_calls}
            if last is not None
            else set[str | None]()
        )
        if all(result.call_id in made for result in found):
            self.messages += [HistoryMessage.of(tool_message(result)) for result in found]
            return
        shown_ = [{"name": result.name, "result": content_text(result.content)} for result in found]
        # Escaped, so that no result is read as a step. In JSON, an adapter's marks can only be in
        # strings, where escapes are allowed.
        text = _MARKS.sub(lambda mark: f"\\u{ord(mark[0]):04x}", json_text(shown_))
        self.messages.append(HistoryMessage.of(Message("user", f"Results of your calls:\n{text}")))

    def set_system_message(self, content: Any) -> None:
        """Set the system message, which is the first."""
        self.add_message("system", content)

    def _set_system(self, message: Message) -> None:
        self.messages[: len(self.messages) - len(after_system(self.messages))] = [
            HistoryMessage.of(message),
        ]

    def clear(self) -> None:
        """Remove all messages."""
        self.messages.clear()

    # -- reading
    # --------------------------------------------------------------------------------------------------

    def copy(self) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]  udspy's name; pydantic's own is outdated
        """A deep copy."""
        return type(self)(
            messages=[
                each if type(each) is HistoryMessage else deepcopy(each) for each in self.messages
            ],
        )

    def compacted(self, tokens: int, strategy: str = "shorten", *, keep: int = 2) -> History:
        """A copy of at most about `tokens` tokens: a note takes the place of the oldest messages.

        `"shorten"` cuts the long results of tools first; `"drop"` does not. The newest `keep`
        messages stay. An answer with calls and their results count as one. Sizes are estimates: a
        quarter of the UTF-8 bytes.
        """
        from ferrule.values.conversation.compact import (
            compact_entries,
        )  # late: few histories grow that long

        return History(messages=compact_entries(self.entries(), tokens, strategy, keep=keep))

    def entries(self) -> list[Any]:
        """The messages as `Message`s, and the turns of fields."""
        return [
            _read(entry, i) if _is_message(entry) else entry
            for i, entry in enumerate(self.messages)
        ]

    def as_messages(
        self,
        render_turn: Callable[[Mapping[str, Any]], Iterable[Message]],
    ) -> list[Message]:
        """The history as messages, with turns rendered by `render_turn`. Raises `InputError` if calls and results do not match."""
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
        return {"messages": [_dump(each) for each in self.messages]}

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return True  # an empty history is not a missing one

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  over messages, not over fields
        return iter(self.messages)

    def __getitem__(self, index: int) -> Any:
        return self.messages[index]

    def __repr__(self) -> str:
        return f"History({len(self.messages)} messages)"

    __str__ = __repr__


def after_system(entries: Sequence[Any]) -> list[Any]:
    """The entries without the system message at their start: each model call writes its own. Later system messages stay."""
    return (
        [*entries[1:]]
        if entries and _is_message(entries[0]) and _role(entries[0]) == "system"
        else [*entries]
    )


def _role(entry: Any) -> Any:
    return entry.role if isinstance(entry, Message) else entry.get("role")


def _is_message(entry: Any) -> bool:
    """Whether an entry is a chat message; a turn may have a field called `role` too."""
    if isinstance(entry, Message):
        return True
    role = entry.get("role")
    return isinstance(role, str) and role in _ROLES and any(key in entry for key in _OF_MESSAGES)


def _entry(given: Any) -> Any:
    found = (
        given
        if isinstance(given, HistoryMessage) or not isinstance(given, dict)
        else read_marked(given)
    )
    return HistoryMessage.of(found) if _is_message(found) else found


def _holds(found: Any, kind: Any) -> bool:
    return isinstance(found, list) and any(
        isinstance(each, kind) for each in cast("list[Any]", found)
    )


def _read(entry: Any, index: int) -> Message:
    if isinstance(entry, Message):
        return entry
    return entry.read(index) if isinstance(entry, HistoryMessage) else _parse(entry, index)


def _parse(entry: Mapping[str, Any], index: int) -> Message:
    role = "system" if entry["role"] == "developer" else entry["role"]
    try:
        calls = tuple(ToolCall.read(each) for each in entry.get("tool_calls") or ())
    except (ToolCallError, TypeError) as error:
        raise InputError(f"Message {index} of the history has invalid calls: {error}") from error
    calls = tuple(
        call if call.id else call.with_id(f"call_{index}_{i}") for i, call in enumerate(calls)
    )
    extra = {key: entry[key] for key in _EXTRA_FIELDS if entry.get(key) is not None}
    call_id = entry.get("tool_call_id")
    if not isinstance(call_id, str | None):
        raise InputError(
            f"Message {index} of the history has a `tool_call_id` that is not text: {shown(call_id)}.",
        )
    message = Message(role, read_content(entry.get("content")), calls, call_id)
    return replace(message, **extra) if extra else message


def _form(message: Message) -> dict[str, Any]:
    extra = {key: value for key in _EXTRA_FIELDS if (value := getattr(message, key))}
    return {**openai_message(message), **extra}


def _dump(entry: Any) -> Any:
    if not isinstance(entry, (Message, HistoryMessage)):
        return jsonable(marked_parts(entry))
    found = HistoryMessage.of(entry)
    content = found.content if found.get("content") else ""
    if not isinstance(content, str) and read_content(openai_content(content)) != content:
        found["content"] = marked_parts(content)
    return dict(found)


def _copied(value: Any) -> Any:
    """A deep copy. JSON takes a tenth of `deepcopy`'s time, which matters because each run copies each message of its history."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if type(value) is dict:
        return {key: _copied(each) for key, each in cast("dict[Any, Any]", value).items()}
    return (
        [_copied(each) for each in cast("list[Any]", value)]
        if type(value) is list
        else deepcopy(value)
    )


def _check_results(messages: list[Message]) -> None:
    """Check that each call has one result after it, and each result a call before it: providers refuse anything else."""
    waiting: dict[str, str] = {}
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                msg = f"The history has a result for the call {message.tool_call_id!r}, but no such call before it without a result."
                raise InputError(msg)
            del waiting[message.tool_call_id]
            continue
        if waiting:
            break
        waiting = {call.id or "": call.name for call in message.tool_calls}
    if waiting:
        calls = ", ".join(f"`{name}` ({call_id})" for call_id, name in waiting.items())
        raise InputError(
            f"The history has calls without a result: {calls}. Add each with `add_tool_result(id, content)`.",
        )
