"""What clients of AG-UI and of Vercel's AI SDK make of a response, and whether it keeps their
rules. Their real clients: `scripts/front-ends.sh`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from ag_ui.core import Event
from pydantic import TypeAdapter

from ferrule import Delta, Module, Predict, Prediction, Request, Response, context, gather
from ferrule.testing import ScriptedLM

_EVENT = TypeAdapter[Any](Event)


def messages_of(chunks: str) -> list[dict[str, Any]]:
    """The messages in a response, without the mark at its end."""
    frames = [frame.removeprefix("data: ") for frame in chunks.split("\n\n") if frame]
    return [json.loads(frame) for frame in frames if frame != "[DONE]"]


class PatientLM(ScriptedLM):
    """Lets others speak after each word."""

    is_instant = False

    async def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        async for item in super().astream(request):
            yield item
            await asyncio.sleep(0)


class Drafts(Module):
    """Writes three drafts, one after another or at the same time, and returns one of them."""

    def __init__(self, *, at_once: bool, best: int) -> None:
        self.write = Predict("topic -> text")
        self.at_once, self.best = at_once, best

    async def aforward(self, topic: str) -> Prediction:
        topics = [f"{topic} {number}" for number in range(3)]
        if self.at_once:
            made = await gather(*(self.write.acall(topic=each) for each in topics))
        else:
            made = [await self.write.acall(topic=each) for each in topics]
        return Prediction(text=made[self.best].text)


def drafted(*, at_once: bool, best: int) -> list[Any]:
    """The events of a run of `Drafts`."""

    def write(request: Request) -> str:
        number = next(each for each in "012" if f"topic {each}" in request.messages[-1].text)
        return f"[[ ## text ## ]]\nDraft {number} is long.\n\n[[ ## completed ## ]]"

    async def events() -> list[Any]:
        with context(lm=PatientLM(by=write)):
            return [
                event async for event in Drafts(at_once=at_once, best=best).astream(topic="topic")
            ]

    return asyncio.run(events())


class AGUIClient:
    """A client of AG-UI: checks each event by the package's types and the order by the
    specification, and keeps the messages.
    """

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.events: list[dict[str, Any]] = []
        self.agents: list[str] = []

    def receive(self, chunks: str) -> list[dict[str, Any]]:
        """Take a response, which is one run."""
        events = messages_of(chunks)
        for event in events:
            _EVENT.validate_python(event)
            event.pop("timestamp", None)
        self.events = events
        assert events[0]["type"] in {"RUN_STARTED", "RUN_ERROR"}
        assert events[-1]["type"] in {"RUN_FINISHED", "RUN_ERROR"}
        assert all(
            event["type"] not in {"RUN_STARTED", "RUN_FINISHED", "RUN_ERROR"}
            for event in events[1:-1]
        )
        is_open: dict[tuple[str, str], Any] = {}
        ended: set[str] = set()
        for event in events:
            self._take(event, is_open, ended)
        assert events[-1]["type"] == "RUN_ERROR" or not is_open
        return events

    def receive_part(self, chunks: str) -> None:
        """Take the beginning of a response, whose end is lost."""
        is_open: dict[tuple[str, str], Any] = {}
        for event in messages_of(chunks):
            self._take(event, is_open, set())

    def _take(
        self,
        event: dict[str, Any],
        is_open: dict[tuple[str, str], Any],
        ended: set[str],
    ) -> None:
        kind = event["type"]
        if agent := event.get("subagentRunId"):
            assert agent not in ended
            assert kind == "SUBAGENT_STARTED" or ("agent", agent) in is_open
        match kind:
            case "SUBAGENT_STARTED":
                assert ("agent", agent) not in is_open
                assert (
                    "agent",
                    event.get("parentSubagentRunId", agent),
                ) in is_open or "parentSubagentRunId" not in event
                is_open["agent", agent] = True
                self.agents.append(event["name"])
            case "SUBAGENT_FINISHED" | "SUBAGENT_ERROR":
                del is_open["agent", agent]
                ended.add(agent)
            case "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START":
                key = (kind.removesuffix("_START"), event["messageId"])
                assert key not in is_open
                role = "assistant" if kind.startswith("TEXT") else "reasoning"
                is_open[key] = self._message(
                    event["messageId"],
                    {"id": event["messageId"], "role": role, "content": ""},
                )
            case "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT":
                assert (kind.removesuffix("_CONTENT"), event["messageId"]) in is_open
                self._message(event["messageId"], {})["content"] += event["delta"]
            case "TEXT_MESSAGE_END" | "REASONING_MESSAGE_END":
                del is_open[kind.removesuffix("_END"), event["messageId"]]
            case "TOOL_CALL_START":
                assert ("call", event["toolCallId"]) not in is_open
                is_open["call", event["toolCallId"]] = True
                made = {
                    "id": event["toolCallId"],
                    "type": "function",
                    "function": {"name": event["toolCallName"], "arguments": ""},
                }
                self._message(
                    event["parentMessageId"],
                    {"id": event["parentMessageId"], "role": "assistant", "toolCalls": [made]},
                )
            case "TOOL_CALL_ARGS":
                assert ("call", event["toolCallId"]) in is_open
                self._message(event["toolCallId"], {})["toolCalls"][0]["function"]["arguments"] += (
                    event["delta"]
                )
            case "TOOL_CALL_END":
                del is_open["call", event["toolCallId"]]
            case "TOOL_CALL_RESULT":
                message = {
                    "id": event["messageId"],
                    "role": "tool",
                    "toolCallId": event["toolCallId"],
                    "content": event["content"],
                }
                self.messages.append(message)
            case "MESSAGES_SNAPSHOT":
                whole = {
                    message["id"]: message for message in json.loads(json.dumps(event["messages"]))
                }
                kept = [
                    whole.pop(message["id"]) for message in self.messages if message["id"] in whole
                ]
                self.messages = [*kept, *whole.values()]
            case _:
                pass

    def _message(self, key: str, new: dict[str, Any]) -> dict[str, Any]:
        found = next((message for message in self.messages if message["id"] == key), None)
        if found is None:
            assert new, f"no message {key}"
            self.messages.append(found := new)
        return found

    @property
    def said(self) -> list[str]:
        """The texts of the assistant itself."""
        return [
            m["content"]
            for m in self.messages
            if m["role"] == "assistant" and "toolCalls" not in m and not m.get("subagentRunId")
        ]

    @property
    def results(self) -> list[str]:
        """The contents of the tool messages."""
        return [message["content"] for message in self.messages if message["role"] == "tool"]

    @property
    def interrupts(self) -> list[dict[str, Any]]:
        """What the last run waits for."""
        return self.events[-1].get("outcome", {}).get("interrupts", [])


class UIClient:
    """A client of Vercel's AI SDK: keeps one assistant message, as `processUIMessageStream` does."""

    def __init__(self) -> None:
        self.id = ""
        self.parts: list[dict[str, Any]] = []
        self.chunks: list[dict[str, Any]] = []

    def receive(self, chunks: str) -> list[dict[str, Any]]:
        """Take a response."""
        assert chunks.endswith("data: [DONE]\n\n")
        self.chunks = messages_of(chunks)
        is_open: dict[tuple[str, str], dict[str, Any]] = {}
        for chunk in self.chunks:
            self._take(chunk, is_open)
        assert not is_open or self.chunks[-1]["type"] == "error"
        return self.chunks

    def _take(self, chunk: dict[str, Any], is_open: dict[tuple[str, str], dict[str, Any]]) -> None:
        kind: str = chunk["type"]
        family, _, last = kind.rpartition("-")
        match kind:
            case "start":
                self.id = chunk["messageId"]
            case "start-step":
                self.parts.append({"type": "step-start"})
            case "finish-step":
                assert (
                    not is_open
                )  # version 6 forgets the open parts, and breaks off at their next chunk
            case "text-start" | "reasoning-start":
                assert (family, chunk["id"]) not in is_open
                self.parts.append(
                    part := {
                        "type": family,
                        "text": "",
                        "providerMetadata": chunk.get("providerMetadata"),
                    },
                )
                is_open[family, chunk["id"]] = part
            case "text-delta" | "reasoning-delta":
                is_open[family, chunk["id"]]["text"] += chunk["delta"]
            case "text-end" | "reasoning-end":
                part = is_open.pop((family, chunk["id"]))
                part["providerMetadata"] = chunk.get("providerMetadata", part["providerMetadata"])
            case "tool-input-start":
                assert all(part.get("toolCallId") != chunk["toolCallId"] for part in self.parts)
                fields = {
                    "toolCallId": chunk["toolCallId"],
                    "state": "input-streaming",
                    "toolMetadata": chunk.get("toolMetadata"),
                }
                self.parts.append({"type": f"tool-{chunk['toolName']}", **fields, "written": ""})
            case "tool-input-delta":
                self._call(chunk)["written"] += chunk["inputTextDelta"]
            case "tool-input-available":
                self._call(chunk).update(state="input-available", input=chunk["input"])
            case "tool-approval-request":
                self._call(chunk).update(
                    state="approval-requested",
                    approval={"id": chunk["approvalId"]},
                )
            case "tool-output-available":
                self._call(chunk).update(state="output-available", output=chunk["output"])
            case "tool-output-error":
                self._call(chunk).update(state="output-error", errorText=chunk["errorText"])
            case "tool-output-denied":
                self._call(chunk).update(state="output-denied")
            case _ if kind.startswith("data-") and not chunk.get("transient"):
                self.parts.append(chunk)
            case _:
                assert last in {"step", "finish", "error", "abort", "progress"}, kind

    def _call(self, chunk: dict[str, Any]) -> dict[str, Any]:
        return next(part for part in self.parts if part.get("toolCallId") == chunk["toolCallId"])

    def decide(self, *, approved: bool, reason: str | None = None) -> None:
        """Answer all approvals, as `addToolApprovalResponse` does."""
        for part in self.calls("approval-requested"):
            part["state"] = "approval-responded"
            part["approval"] = {
                "id": part["approval"]["id"],
                "approved": approved,
                **({"reason": reason} if reason else {}),
            }

    def calls(self, state: str) -> list[dict[str, Any]]:
        """The calls in this state."""
        return [part for part in self.parts if part.get("state") == state]

    @property
    def said(self) -> list[str]:
        """The texts that are not void."""
        facts = (
            (part, (part.get("providerMetadata") or {}).get("ferrule", {}))
            for part in self.parts
            if part["type"] == "text"
        )
        return [part["text"] for part, fact in facts if not fact.get("void")]

    def body(self, *earlier: dict[str, Any]) -> dict[str, Any]:
        """What `useChat` sends next."""
        return {
            "id": "c1",
            "trigger": "submit-message",
            "messages": [*earlier, {"id": self.id, "role": "assistant", "parts": self.parts}],
        }
