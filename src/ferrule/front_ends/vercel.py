"""The UI message stream of Vercel's AI SDK (`ai`, versions 6 and 7).

Encodes a run's events as chunks, and reads requests of `useChat`. Chunks and messages follow the
packages' own schemas, read in November 2026.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import asdict

from ferrule.encoding.encode import json_text
from ferrule.errors import DecisionError, InputError, shown
from ferrule.forms import form_of
from ferrule.front_ends.front_end import FrontEnd, read_list, read_text
from ferrule.front_ends.messages import objects, read_ui_messages
from ferrule.front_ends.page import Page, present, question_id, run_of
from ferrule.front_ends.page_tools import read_page_tools
from ferrule.values.conversation.exchange import Usage
from ferrule.values.outcome import Prediction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule import events
    from ferrule.approval.question import Decision, Question
    from ferrule.front_ends.page import ShownCall, ShownText
    from ferrule.values.calls.call import ToolCall


class VercelAI(FrontEnd):
    """One request of `useChat` (its JSON body), and the encoder of its response.

    Without a request, it only encodes, as for the `GET` of a page that reconnects. Raises
    `InputError` for an invalid request.
    """

    via = "vercel"
    headers = {  # noqa: RUF012  the same for all
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "x-vercel-ai-ui-message-stream": "v1",
    }
    _last_chunk = "data: [DONE]\n\n"

    def _read(self, body: Mapping[str, Any]) -> None:
        self.thread_id = read_text(body, "id")
        if isinstance(body.get("message"), dict):
            self._messages = [body["message"]]
        else:
            self._messages = read_list(body, "messages", is_required=True)
        self.tools = read_page_tools(_declared(body.get("tools")), self._allowed)
        for message in self._messages:
            if not isinstance(message.get("parts"), list):
                raise InputError(f"A message of `useChat` has `parts`; found {shown(message)}.")
        self.content, self.history = read_ui_messages(self._messages)
        if self._messages and self._messages[-1].get("role") == "assistant":
            self._read_answers(self._messages[-1])

    def _read_answers(self, message: Mapping[str, Any]) -> None:
        self.run_id = str(message.get("id") or "")
        for part in objects(message["parts"]):
            if part.get("state") == "approval-responded":
                answer = _decision_of(part.get("approval"))
                self._put_answer(answer["id"], answer)
                self.run_id = run_of(answer["id"])
            elif part.get("state") == "output-available" and isinstance(
                part.get("toolCallId"), str
            ):
                answer = {name: part[name] for name in ("input", "output") if name in part}
                self._put_answer(part["toolCallId"], {"output": None, **answer})
            elif part.get("state") == "output-error" and isinstance(part.get("toolCallId"), str):
                answer = {"error": part.get("errorText") or ""}
                if "input" in part:
                    answer["input"] = part["input"]
                self._put_answer(part["toolCallId"], answer)

    def _answer(self, question: Question, answer: Mapping[str, Any]) -> Decision:
        if "error" in answer:
            raise DecisionError(
                f"The call of `{question.call.name}` waits for an answer, not for an error."
            )
        if "output" not in answer:
            if answer["approved"]:
                return question.approve()
            return question.deny(str(answer.get("reason") or ""))
        output = answer["output"]
        match question.kind:
            case "clarify":
                return question.reply(_as_text(output))
            case "input":
                return question.decide(output)
            case _:
                raise DecisionError(
                    f"The call of `{question.call.name}` waits for an approval, not for an output."
                )

    def _page(self) -> Page:
        return _Chunks()

    def _known_calls(self) -> Iterable[str]:
        for message in self._messages:
            for part in objects(message["parts"]):
                if isinstance(part.get("toolCallId"), str):
                    yield part["toolCallId"]


class _Chunks(Page):
    """The chunks of one assistant message, whose id is the run's."""

    def __init__(self) -> None:
        super().__init__()
        self._is_in_step = False
        self._open: set[str] = set()
        """The open texts and thoughts. A step ends only when there is none, because the SDK drops
        open ones at the end of a step."""
        self._usage = Usage()
        self._written: dict[str, list[str]] = {}
        """The arguments of calls, as they stream."""
        self._inputs: dict[str, Any] = {}
        """The arguments of calls as last shown."""

    def begin(self) -> None:
        self.emit("start", messageId=self.run_id)

    def _end_step(self) -> None:
        if self._is_in_step:
            self._is_in_step = False
            self.emit("finish-step")

    def step(self, agent: str) -> None:
        if not agent and not self._open:
            self._end_step()
            self._is_in_step = True
            self.emit("start-step")

    def answered(self, event: events.ModelAnswered) -> None:
        if event.response is not None:
            self._usage += event.response.usage

    # -- parts: the texts of a nested agent are in the result of its call

    def open_text(self, text: ShownText) -> None:
        if text.agent:
            return
        self._open.add(text.id)
        facts = _facts(field=text.name)
        self.emit(f"{_kind(text)}-start", id=text.id, providerMetadata=facts)

    def add_text(self, text: ShownText, piece: str) -> None:
        if not text.agent:
            self.emit(f"{_kind(text)}-delta", id=text.id, delta=piece)

    def close_text(self, text: ShownText, *, is_void: bool) -> None:
        if text.agent:
            return
        self._open.discard(text.id)
        facts = None
        if is_void:
            facts = _facts(field=text.name, void=True)
        elif text.is_preamble:
            facts = _facts(preamble=True)
        self.emit(f"{_kind(text)}-end", id=text.id, providerMetadata=facts)

    def open_call(self, call: ShownCall) -> None:
        # `agent` marks the calls of a nested agent: a page can tell them apart, and the history
        # leaves them out.
        self.emit(
            "tool-input-start",
            toolCallId=call.id,
            toolName=call.name,
            toolMetadata=_facts(agent=call.agent),
        )

    def add_arguments(self, call: ShownCall, piece: str) -> None:
        self._written.setdefault(call.id, []).append(piece)
        self.emit("tool-input-delta", toolCallId=call.id, inputTextDelta=piece)

    def end_arguments(self, call: ShownCall) -> None:
        text = "".join(self._written.pop(call.id, ()))
        try:
            self._show_input(call, json.loads(text))
        except (ValueError, RecursionError):
            self._show_input(call, text)

    def ready(self, call: ShownCall, checked: ToolCall) -> None:
        if not call.is_known:
            self._show_input(call, form_of(checked.args))

    def _show_input(self, call: ShownCall, shown_input: Any) -> None:
        if call.id not in self._inputs or self._inputs[call.id] != shown_input:
            self._inputs[call.id] = shown_input
            facts = _facts(agent=call.agent)
            self.emit(
                "tool-input-available",
                toolCallId=call.id,
                toolName=call.name,
                input=shown_input,
                toolMetadata=facts,
            )

    def settle(self, call: ShownCall, content: Any, *, is_error: bool) -> None:
        if is_error:
            self.emit("tool-output-error", toolCallId=call.id, errorText=_as_text(content))
        else:
            self.emit("tool-output-available", toolCallId=call.id, output=content)

    def deny(self, call: ShownCall, reason: str) -> None:  # noqa: ARG002  the page has it
        self.emit("tool-output-denied", toolCallId=call.id)

    def ask(self, question: Question, call: ShownCall) -> None:
        shown_id = question_id(self.run_id, question)
        facts: dict[str, Any] = {
            "kind": question.kind,
            "text": question.text,
            "expiresAt": question.expires_at,
        }
        # The answer will be the output of the call.
        if question.kind in {"clarify", "input", "result"}:
            facts |= {"toolCallId": call.id, "form": question.form, "url": question.url or None}
            self.emit("data-question", id=shown_id, data=present(facts))
            return
        self._show_input(call, form_of(question.call.args))
        self.emit(
            "tool-approval-request",
            approvalId=shown_id,
            toolCallId=call.id,
            reason=question.text,
            approvalDescriptor=present(facts),
        )

    # Data parts have no owner.
    def custom(self, name: str, value: Any, agent: str) -> None:  # noqa: ARG002
        # `value` may be None, which `emit` would leave out.
        chunk = {"type": f"data-{name}", "data": value}
        if name == "progress":
            chunk["transient"] = True
        self.out.append(chunk)

    # -- the end

    def finish(
        self,
        ending: events.RunFinished,
        questions: Iterable[tuple[Question, ShownCall]],  # noqa: ARG002
        unsettled: list[str],
    ) -> None:
        if ending.status == "cancelled":
            self.emit("abort")
            return
        self._end_step()
        prediction = ending.prediction
        if isinstance(prediction, Prediction):
            outputs = form_of(prediction)["outputs"]
            self.emit("data-outputs", id=f"{self.run_id}#outputs", data=outputs)
        counts = {
            name: count for name, count in asdict(self._usage).items() if isinstance(count, int)
        }
        metadata = None
        if self._usage.calls:
            metadata = {"usage": counts}
        reason = "stop"
        if ending.status == "waiting" or unsettled:
            reason = "tool-calls"
        self.emit("finish", finishReason=reason, messageMetadata=metadata)

    def fail(self, text: str, kind: str) -> None:  # noqa: ARG002
        self.emit("error", errorText=text)


def _declared(tools: Any) -> list[dict[str, Any]]:
    """The tools that a request declares: a list, or descriptions by name.

    The AI SDK's transport sends none by itself; a page adds them to its `body`.
    """
    if not isinstance(tools, dict):
        return objects(tools)
    by_name = cast("dict[str, Any]", tools).items()
    return [{**entry, "name": name} for name, entry in by_name if isinstance(entry, dict)]


def _decision_of(approval: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    if isinstance(approval, dict):
        answer = cast("dict[str, Any]", approval)
    if isinstance(answer.get("id"), str) and isinstance(answer.get("approved"), bool):
        return answer
    raise InputError(
        "A decision of `useChat` has an `id` and `approved`; "
        f"found {shown(cast('object', approval))}."
    )


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json_text(value)


def _kind(text: ShownText) -> str:
    """What the protocol calls a text, or a thought."""
    if text.is_thought:
        return "reasoning"
    return "text"


def _facts(**facts: Any) -> dict[str, Any] | None:
    """Metadata of ours, without what is empty; None if nothing is left."""
    present = {name: fact for name, fact in facts.items() if fact}
    if not present:
        return None
    return {"ferrule": present}
