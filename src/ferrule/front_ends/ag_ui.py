"""AG-UI 1.0: encodes a run's events as AG-UI events, and reads requests of its clients.

The rules are from docs.ag-ui.com, read in November 2026.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import LAST_TIME
from ferrule.errors import DecisionError, InputError, shown
from ferrule.forms import form_of
from ferrule.front_ends.front_end import FrontEnd, read_list, read_text
from ferrule.front_ends.messages import objects, read_ag_ui, text_of_ag_ui
from ferrule.front_ends.page import Page, present, question_id, run_of, run_of_call
from ferrule.front_ends.page_tools import read_page_tools
from ferrule.values.conversation.exchange import Usage
from ferrule.values.outcome import Prediction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule import events
    from ferrule.approval.question import Decision, Question
    from ferrule.front_ends.page import ShownCall, ShownText
    from ferrule.values.calls.call import ToolCall

VERSION = "1.0"
_APPROVED = {
    "approved": {"type": "boolean"},
    "reason": {"type": "string", "description": "Why the call is denied."},
}
_CLARIFY = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
_REASONS = {"clarify": "input_required", "input": "input_required"}
_CANCELLED = "The person did not decide."


class AGUI(FrontEnd):
    """One request of an AG-UI client, a `RunAgentInput` as JSON data; encodes its response.

    Without a request, it only encodes. Raises `InputError` for an invalid request.
    """

    via = "ag-ui"
    # Shared by all instances, and never changed.
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # noqa: RUF012

    _request_id = ""

    def _read(self, body: Mapping[str, Any]) -> None:
        self.thread_id = read_text(body, "threadId")
        self._request_id = read_text(body, "runId")
        self._messages = read_list(body, "messages", is_required=True)
        self.content, self.history = read_ag_ui(self._messages)
        self.tools = read_page_tools(read_list(body, "tools"), self._allowed)
        self.state = body.get("state")
        self.context = read_list(body, "context")
        self._read_results()
        for index, entry in enumerate(read_list(body, "resume")):
            has_status = str(entry.get("status")) in {"resolved", "cancelled"}
            if not has_status or not isinstance(entry.get("interruptId"), str):
                raise InputError(
                    f"`resume[{index}]` of an AG-UI request needs an `interruptId` and a `status`; "
                    f"found {shown(entry)}."
                )
            self._put_answer(entry["interruptId"], entry)
            self.run_id = self.run_id or run_of(entry["interruptId"])

    def _read_results(self) -> None:
        """Read the results of the page's tools, which are its last messages.

        The page also keeps the results that a response brought; those have ids that we made.
        """
        if not self._messages or not _is_of_page(self._messages[-1]):
            return
        self.run_id = run_of_call(str(self._messages[-1]["toolCallId"]))
        for message in reversed(self._messages):
            if message.get("role") == "user":
                break
            if _is_of_page(message):
                call_id = str(message["toolCallId"])
                if message.get("error"):
                    answer = {"error": str(message["error"])}
                else:
                    answer = {"output": text_of_ag_ui(message)}
                self._put_answer(call_id, answer)

    def _answer(self, question: Question, answer: Mapping[str, Any]) -> Decision:
        if "status" not in answer:
            raise DecisionError(
                f"The call of `{question.call.name}` waits for a decision, which a page sends as "
                "`resume`, and not for a result of a tool."
            )
        payload = answer.get("payload")
        if answer["status"] == "cancelled":
            return question.deny(_CANCELLED)
        if question.kind == "clarify":
            return question.reply(_reply_in(payload))
        if question.kind == "input":
            return question.decide(payload)  # pyright: ignore[reportArgumentType]  it checks
        if isinstance(payload, bool):
            payload = {"approved": payload}
        fields: dict[str, Any] = {}
        if isinstance(payload, dict):
            fields = cast("dict[str, Any]", payload)
        approved, edited = fields.get("approved"), fields.get("editedArgs")
        if not isinstance(approved, bool) or not isinstance(edited, dict | None):
            raise DecisionError(
                'The answer to an approval is {"approved": true or false}; '
                f"found {shown(cast('object', payload))}."
            )
        if not approved:
            return question.deny(str(fields.get("reason") or ""))
        if edited is None:
            return question.approve()
        return _edit(question, cast("dict[str, Any]", edited))

    def _page(self) -> Page:
        return _Events(self.thread_id, self._request_id, self._messages)

    def _known_calls(self) -> Iterable[str]:
        for message in self._messages:
            for call in objects(message.get("toolCalls")):
                yield str(call.get("id"))


def _is_of_page(message: Mapping[str, Any]) -> bool:
    """Whether a message is the result of a tool that the page ran."""
    call_id = message.get("toolCallId")
    if message.get("role") != "tool" or not isinstance(call_id, str):
        return False
    return message.get("id") != _result_id(call_id)


def _reply_in(payload: Any) -> str:
    """The text of a reply, alone or as `answer`; anything else as JSON."""
    reply = payload
    if isinstance(payload, dict):
        reply = cast("dict[str, Any]", payload).get("answer")
    if isinstance(reply, str):
        return reply
    return json_text(cast("object", payload))


def _edit(question: Question, edited: dict[str, Any]) -> Decision:
    """Decide with `editedArgs`, which replace all arguments.

    Arguments that the model omitted may stay omitted.
    """
    args = question.call.args
    args_of_model = args
    if question.raw is not None:
        args_of_model = question.raw
    missing = [name for name in args if name in args_of_model and name not in edited]
    if missing:
        raise DecisionError(
            f"`editedArgs` replace all arguments of `{question.call.name}`; "
            f"missing: {', '.join(missing)}."
        )
    changed = {
        name: value for name, value in edited.items() if name not in args or args[name] != value
    }
    if not changed:
        return question.approve()
    return question.edit(changed)


def _result_id(call_id: str) -> str:
    """The id of the message with the result of a call."""
    return f"{call_id}/result"


class _Events(Page):
    """The events of one AG-UI run, and the messages of its conversation."""

    def __init__(
        self, thread_id: str, request_id: str, client_messages: list[dict[str, Any]]
    ) -> None:
        super().__init__()
        self._thread_id, self._request_id = thread_id, request_id
        self._known_ids: set[str] = set()
        """The ids of messages and results that the client already has. They are not sent again, but
        restated if they grew."""
        self._messages: dict[str, tuple[dict[str, Any], list[str] | None]] = {}
        """The messages of the conversation; those of this run come with the pieces of their text or
        of their call's arguments."""
        for message in client_messages:
            key = str(message.get("id"))
            self._known_ids.add(key)
            if message.get("role") == "tool":
                self._known_ids.add(_result_id(str(message.get("toolCallId"))))
            if message.get("role") != "activity":
                self._messages[key] = (message, None)
        self._is_stale = False
        """Whether the client's messages are out of date, and must be sent again as a whole."""
        self._time_s = 0.0
        self._usage: dict[str, Usage] = {}

    def set_time(self, time_s: float) -> None:
        self._time_s = time_s

    def emit(self, kind: str, /, **fields: Any) -> None:
        timestamp_ms = None
        if self._time_s:
            timestamp_ms = int(self._time_s * 1000)
        super().emit(kind, timestamp=timestamp_ms, **fields)

    def begin(self) -> None:
        self._thread_id = self._thread_id or self.run_id
        self._request_id = self._request_id or self.run_id
        self.emit(
            "RUN_STARTED", threadId=self._thread_id, runId=self._request_id, protocolVersion=VERSION
        )

    def answered(self, event: events.ModelAnswered) -> None:
        if event.response is not None:
            model = event.response.model or ""
            self._usage[model] = self._usage.get(model, Usage()) + event.response.usage

    def _agent(self, agent: str) -> str | None:
        if not agent:
            return None
        return f"{self.run_id}/{agent}"

    def enter(self, agent: str, outer: str, call_id: str | None) -> None:
        ids = {
            "subagentRunId": self._agent(agent),
            "parentSubagentRunId": self._agent(outer),
            "parentToolCallId": call_id,
        }
        self.emit("SUBAGENT_STARTED", name=agent.rpartition("/")[2].partition(":")[0], **ids)

    def leave(
        self, agent: str, status: str, prediction: Any, questions: Iterable[Question]
    ) -> None:
        agent_id = self._agent(agent)
        if status == "waiting":
            outcome: dict[str, Any] = {"type": "suspended"}
            ids = [question_id(self.run_id, question) for question in questions]
            if ids:
                outcome["interruptIds"] = ids
            self.emit("SUBAGENT_FINISHED", subagentRunId=agent_id, outcome=outcome)
        elif status == "done":
            self.emit("SUBAGENT_FINISHED", subagentRunId=agent_id, result=_outputs(prediction))
        elif status == "failed":
            self.emit("SUBAGENT_ERROR", subagentRunId=agent_id, message="The agent has failed.")
        else:
            message = "The agent has been cancelled."
            self.emit("SUBAGENT_ERROR", subagentRunId=agent_id, message=message)

    # -- messages

    def _restate(self) -> None:
        if self._is_stale:
            self._is_stale = False
            messages = [_joined(message, pieces) for message, pieces in self._messages.values()]
            self.emit("MESSAGES_SNAPSHOT", messages=messages)

    def open_text(self, text: ShownText) -> None:
        role = "assistant"
        if text.is_thought:
            role = "reasoning"
        metadata = None
        if text.name:
            metadata = {"ferrule": {"field": text.name}}
        if text.id not in self._known_ids:
            self._restate()
            ids = {"messageId": text.id, "subagentRunId": self._agent(text.agent)}
            if text.is_thought:
                self.emit("REASONING_START", **ids)
                self.emit("REASONING_MESSAGE_START", role=role, **ids)
            else:
                self.emit("TEXT_MESSAGE_START", role=role, metadata=metadata, **ids)
        self._keep(text.id, {"role": role, "metadata": metadata}, text.agent, text.pieces)

    def _keep(
        self, key: str, message: dict[str, Any], agent: str, pieces: list[str] | None = None
    ) -> None:
        fields = {"id": key, **message, "subagentRunId": self._agent(agent)}
        self._messages[key] = (present(fields), pieces)

    def add_text(self, text: ShownText, piece: str) -> None:
        if text.id in self._known_ids:
            return
        kind = "TEXT_MESSAGE_CONTENT"
        if text.is_thought:
            kind = "REASONING_MESSAGE_CONTENT"
        self.emit(kind, messageId=text.id, delta=piece, subagentRunId=self._agent(text.agent))

    def close_text(self, text: ShownText, *, is_void: bool) -> None:
        agent = self._agent(text.agent)
        if text.id in self._known_ids:
            self._is_stale = True
        elif text.is_thought:
            self.emit("REASONING_MESSAGE_END", messageId=text.id, subagentRunId=agent)
            self.emit("REASONING_END", messageId=text.id, subagentRunId=agent)
        else:
            self.emit("TEXT_MESSAGE_END", messageId=text.id, subagentRunId=agent)
            if text.is_preamble:
                self._mark_preamble(text)
        if is_void:
            self.replace_text(text)

    def _mark_preamble(self, text: ShownText) -> None:
        # The client got the metadata when the message began, and cannot change it.
        self.custom("preamble", {"messageId": text.id}, text.agent)
        facts = {"role": "assistant", "metadata": {"ferrule": {"preamble": True}}}
        self._keep(text.id, facts, text.agent, text.pieces)

    def replace_text(self, text: ShownText) -> None:
        if self._messages.pop(text.id, None) is not None:
            self._is_stale = True

    def _keep_call(self, call: ShownCall, arguments: list[str]) -> None:
        entry = {"id": call.id, "type": "function", "function": {"name": call.name}}
        self._keep(call.id, {"role": "assistant", "toolCalls": [entry]}, call.agent, arguments)

    def open_call(self, call: ShownCall) -> None:
        self._restate()
        self._keep_call(call, [])
        ids = {"parentMessageId": call.id, "subagentRunId": self._agent(call.agent)}
        self.emit("TOOL_CALL_START", toolCallId=call.id, toolCallName=call.name, **ids)

    def add_arguments(self, call: ShownCall, piece: str) -> None:
        _, pieces = self._messages[call.id]
        if pieces is not None:
            pieces.append(piece)
        self.emit(
            "TOOL_CALL_ARGS", toolCallId=call.id, delta=piece, subagentRunId=self._agent(call.agent)
        )

    def end_arguments(self, call: ShownCall) -> None:
        self.emit("TOOL_CALL_END", toolCallId=call.id, subagentRunId=self._agent(call.agent))

    def ready(self, call: ShownCall, checked: ToolCall) -> None:
        if not call.is_known or call.id not in self._messages:
            return
        message, pieces = self._messages[call.id]
        # The arguments are cut off if the client lost its connection while they streamed.
        if pieces is None and _is_cut_off(message):
            self._keep_call(call, [json_text(checked.args)])
            self._is_stale = True

    def settle(self, call: ShownCall, content: Any, *, is_error: bool) -> None:
        key = _result_id(call.id)
        if key in self._known_ids:
            return
        self._restate()
        text = content
        if not isinstance(text, str):
            text = "".join(part.get("text", "") for part in content)
        metadata = None
        if is_error:
            metadata = {"ferrule": {"isError": True}}
        fields = {"toolCallId": call.id, "content": text, "role": "tool", "metadata": metadata}
        self._keep(key, fields, call.agent)
        self.emit(
            "TOOL_CALL_RESULT", messageId=key, subagentRunId=self._agent(call.agent), **fields
        )

    def custom(self, name: str, value: Any, agent: str) -> None:
        # The state that the page shares with the agent has events of its own.
        if name == "state":
            self.out.append({"type": "STATE_SNAPSHOT", "snapshot": value})
            return
        if name == "state_delta":
            self.out.append({"type": "STATE_DELTA", "delta": value})
            return
        # `value` may be None, which `emit` would leave out.
        message: dict[str, Any] = {"type": "CUSTOM", "name": name, "value": value}
        if agent:
            message["subagentRunId"] = self._agent(agent)
        self.out.append(message)

    # -- the end

    def finish(
        self,
        ending: events.RunFinished,
        questions: Iterable[tuple[Question, ShownCall]],
        unsettled: list[str],
    ) -> None:
        self._restate()
        outcome: dict[str, Any]
        result = None
        interrupts = [self._interrupt(question, call) for question, call in questions]
        # A run that waits only for tools of the page is complete: its next request continues it.
        if ending.status == "waiting" and interrupts:
            outcome = {"type": "interrupt", "interrupts": interrupts}
        elif ending.status == "cancelled":
            outcome = {"type": "cancelled"}
        else:
            outcome = {"type": "success"}
            if unsettled:
                outcome["pendingToolCallIds"] = unsettled
            result = _outputs(ending.prediction)
        self.emit(
            "RUN_FINISHED",
            threadId=self._thread_id,
            runId=self._request_id,
            outcome=outcome,
            result=result,
            usage=self._tokens(),
        )

    def fail(self, text: str, kind: str) -> None:
        self.emit("RUN_ERROR", message=text, code=kind, usage=self._tokens())

    def _interrupt(self, question: Question, call: ShownCall) -> dict[str, Any]:
        expires_at = None
        if question.expires_at is not None:
            ends = min(question.expires_at, LAST_TIME)
            expires_at = datetime.fromtimestamp(ends, UTC).isoformat()
        facts = {
            "kind": question.kind,
            "tool": question.call.name,
            "args": form_of(question.call.args),
            "url": question.url or None,
        }
        interrupt = {
            "id": question_id(self.run_id, question),
            "reason": _REASONS.get(question.kind, "tool_call"),
            "message": question.text,
            "toolCallId": call.id,
            "responseSchema": _answer_schema(question),
            "expiresAt": expires_at,
            "subagentRunId": self._agent(call.agent),
            "metadata": {"ferrule": present(facts)},
        }
        return present(interrupt)

    def _tokens(self) -> list[dict[str, Any]] | None:
        """What each model used; None if nothing is known."""
        rows = [
            _usage_row(model, usage) for model, usage in self._usage.items() if usage.total_tokens
        ]
        return rows or None


def _usage_row(model: str, usage: Usage) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if model:
        row["model"] = model
    row |= {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
    }
    parts = {
        "cachedInputTokens": usage.cached_tokens,
        "cacheWriteInputTokens": usage.cache_write_tokens,
        "reasoningTokens": usage.reasoning_tokens,
    }
    return row | {name: count for name, count in parts.items() if count}


def _answer_schema(question: Question) -> Mapping[str, Any] | None:
    if question.kind == "clarify":
        return _CLARIFY
    if question.kind == "input":
        return question.form
    properties: dict[str, Any] = {**_APPROVED}
    # A call that may have run, or has begun, cannot be edited.
    if question.kind not in {"unknown", "result"}:
        properties["editedArgs"] = {
            "description": "Replaces all arguments of the call.",
            **(question.schema or {"type": "object"}),
        }
    return {"type": "object", "properties": properties, "required": ["approved"]}


def _outputs(prediction: Any) -> Any:
    if isinstance(prediction, Prediction):
        return form_of(prediction)["outputs"]
    return form_of(prediction)


def _is_cut_off(message: dict[str, Any]) -> bool:
    """Whether the arguments of the call in a client's message are not valid JSON."""
    try:
        json.loads(message["toolCalls"][0]["function"]["arguments"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return True
    return False


def _joined(message: dict[str, Any], pieces: list[str] | None) -> dict[str, Any]:
    """A message with its pieces joined into its text or arguments."""
    if pieces is None:
        return message
    text = "".join(pieces)
    if "toolCalls" not in message:
        return {**message, "content": text}
    [call] = message["toolCalls"]
    return {**message, "toolCalls": [{**call, "function": {**call["function"], "arguments": text}}]}
