"""`Narrator`: turns the events of a run into the texts, calls and questions that a page shows.

A narrator serves one response, and is not thread-safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule import events
from ferrule.adapters.parse import output_spec
from ferrule.encoding.encode import json_text
from ferrule.errors import FerruleError
from ferrule.forms import form_of
from ferrule.front_ends.page import (
    UNUSED,
    ShownCall,
    ShownText,
    agent_path,
    result_content,
    tool_call_id,
)
from ferrule.values.content.type import Type
from ferrule.values.outcome import Prediction
from ferrule.values.typed import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ferrule.approval.question import Decision, Question
    from ferrule.events import Event
    from ferrule.front_ends.page import Page
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.conversation.exchange import Response

    Piece = (
        events.TextDelta
        | events.FieldDelta
        | events.ThoughtDelta
        | events.Preamble
        | events.CallDelta
    )

_HIDDEN_CALLS = frozenset({"finish"})
"""Calls that are not shown: `finish` is the answer, whose fields are shown as texts."""
_HIDDEN_FIELDS = frozenset({"next_tool_name", "next_tool_args"})
"""Fields that are not shown: `ReAct` with calls in text uses them, and the call itself is shown."""


class Narrator:
    """Passes one stream of events to a page. `take` and `end` return the page's messages."""

    def __init__(
        self, page: Page, known_calls: Iterable[str], error_text: Callable[[BaseException], str]
    ) -> None:
        self.raised: tuple[type[BaseException], ...] = (FerruleError,)
        """Errors that the events may raise because the run failed: the page shows them."""
        self._page = page
        self._error_text = error_text
        self._known = set(known_calls)
        self._run_id = ""
        self._texts: dict[str, ShownText] = {}
        """The open texts and thoughts, by id."""
        self._outputs: dict[str, ShownText] = {}
        """The latest text of each output."""
        self._answer_number = 1
        """The number of the answer that is being written: after a message to the run, another."""
        self._unshown: set[tuple[str, str | None]] = set()
        """Texts that the page does not show, by model call and output: another program was already
        writing an output of this name."""
        self._calls: dict[str, ShownCall] = {}
        """Calls without a result, by id."""
        self._settled: dict[str, int] = {}
        """How many calls with this id have a result: some servers give every call the same id."""
        self._places: dict[str, str] = {}
        """The ids of calls on the page, by the path of the call."""
        self._agents: dict[str, None] = {}
        """The paths of the open agents, in order."""
        self._questions: dict[str, tuple[Question, ShownCall]] = {}
        """The questions that wait for a decision, by id."""
        self._fields: Mapping[str, Any] | None = None
        """The outputs of the run's program, if known."""
        self._asked: set[str] = set()
        """The paths of model calls that began in this stream: their answers come in pieces."""
        self._text_fields: dict[str, str] = {}
        """The output that the text of a native answer is, by the path of the program."""
        self._answering: set[str] = set()
        """The paths of native model calls whose answer has no call so far."""
        self._answers: dict[str, str] = {}
        """The paths of model calls whose answer was read from a journal, by their text."""
        self._ending: events.RunFinished | None = None
        self._is_over = False

    def take(self, event: Event) -> list[dict[str, Any]]:
        """Return the messages for one event."""
        self._page.set_time(event.at)
        if not self._run_id:
            self._page.run_id = self._run_id = event.root_id or event.run_id
            self._page.begin()
        if isinstance(event, events.RunFinished) and not event.path:
            self._ending = event
            if event.error is not None:
                self.raised += (type(event.error),)
        else:
            self._ending = None  # a waiting run has resumed
            agent = ""
            if event.depth:
                agent = agent_path(event.path)
            if agent:
                self._enter(agent, event.parent_id)
            self._tell(event, agent)
        return self._said()

    def end(self, error: BaseException | None = None) -> list[dict[str, Any]]:
        """Return the messages that end the response.

        `error` is the exception that the events raised.
        """
        if self._is_over:
            return self._said()
        self._is_over = True
        ending = self._ending
        if ending is None:
            self._fail(error or FerruleError("The events ended before the run did."))
        elif ending.status == "failed":
            self._fail(ending.error or error or FerruleError("The run failed."))
        else:
            if ending.status == "done":
                self._tell_outputs(ending.prediction)
            self._close([*self._texts.values()])
            self._end_calls(self._calls.values())
            self._leave(reversed([*self._agents]), ending.status)
            self._page.finish(ending, self._questions.values(), [*self._calls])
        return self._said()

    def _fail(self, error: BaseException) -> None:
        self._page.fail(self._error_text(error), type(error).__name__)

    def _said(self) -> list[dict[str, Any]]:
        messages, self._page.out = self._page.out, []
        return messages

    # -- events

    def _tell(self, event: Event, agent: str) -> None:
        program = event.path.rpartition("/")[0]
        match event:
            case (
                events.TextDelta()
                | events.FieldDelta()
                | events.ThoughtDelta()
                | events.Preamble()
                | events.CallDelta()
            ):
                self._tell_piece(event, program, agent)
            case events.ModelCalled(request=request):
                self._asked.add(event.path)
                if len(request.tools):
                    self._answering.add(event.path)
                self._close(self._texts_of(program))
                self._page.step(agent)
            case events.ModelAnswered(response=response):
                is_replayed = event.path not in self._asked  # from a journal: no pieces came
                if is_replayed and response is not None:
                    self._recall_texts(event.path, program, response, agent)
                self._end_calls(self._calls_of(program))
                self._page.answered(event)
            case events.AttemptFailed():
                self._discard_attempt(program)
            case events.StepFinished(step=step):
                is_void = any(result.is_fault for result in step.results)
                self._close(self._texts_of(program), is_void=is_void)
                for tool_call, result in zip(step.calls, step.results, strict=False):
                    call = self._calls.get(self._shown_id(program, tool_call.id))
                    if call is not None:
                        self._settle(call, result_content(result), is_error=result.is_error)
            case events.Said(text=text, by=by):
                self._close(self._texts_of(program))
                # An answer before the message stays on the page: the next one is another text.
                self._outputs.clear()
                self._answer_number += 1
                self._page.custom("said", {"text": text, "by": by}, agent)
            case events.Custom(name=name, payload=payload):
                self._page.custom(name, form_of(payload), agent)
            case events.RunFinished() if event.status != "waiting":
                self._close(self._texts_of(event.path), is_void=event.status == "failed")
                self._end_calls(self._calls_of(event.path))
                if event.path in self._agents:
                    self._leave([event.path], event.status, event.prediction)
            case events.RunStarted() | events.Resumed():
                self._begin_program(event)
            case _:
                self._tell_call(event, program, agent)

    def _begin_program(self, event: events.RunStarted | events.Resumed) -> None:
        plan = plan_of(event.program)
        if plan is not None:
            self._text_fields[event.path] = output_spec(event.program.signature).text or ""
        if not event.depth:
            self._fields = None
            if plan is not None:
                self._fields = plan.outputs

    def _discard_attempt(self, program: str) -> None:
        """The answer could not be used: another one follows."""
        self._close(self._texts_of(program), is_void=True)
        for call in self._calls_of(program):
            if not call.is_ready:
                self._end_calls([call])
                self._settle(call, UNUSED, is_error=True)

    def _tell_call(self, event: Event, program: str, agent: str) -> None:
        match event:
            case events.CallRefused(call=tool_call, result=result):
                if tool_call.name not in _HIDDEN_CALLS:
                    call = self._ready(program, tool_call, agent)
                    self._settle(call, result_content(result), is_error=result.is_error)
            case events.CallStarted(call=tool_call):
                self._close(self._texts_of(program))
                self._places[event.path] = self._ready(program, tool_call, agent).id
            case events.CallFinished(call=tool_call, result=result):
                inside = [agent for agent in self._agents if agent.startswith(f"{event.path}/")]
                self._leave(reversed(inside), "done")
                call = self._ready(program, tool_call, agent)
                self._settle(call, result_content(result), is_error=result.is_error)
            case events.CallProgress(call_id=call_id, message=message, done=done, total=total):
                shown_id = self._places.get(event.path) or self._shown_id(program, call_id)
                value = {"toolCallId": shown_id, "message": message, "done": done, "total": total}
                self._page.custom("progress", value, agent)
            case events.ProviderCallStarted() | events.ProviderCallFinished():
                # Not as a call: the page would send it back as one of the program's own.
                is_running = isinstance(event, events.ProviderCallStarted)
                value = {**form_of(event.call), "is_running": is_running}
                self._page.custom("provider_call", value, agent)
            case events.QuestionAsked(question=question):
                program = question.path.strip("/")
                self._close(self._texts_of(program))
                call = self._ready(program, question.call, agent)
                if not question.by_page:  # the page has the call, and runs it
                    self._questions[question.id] = question, call
                    self._page.ask(question, call)
            case events.Decided(question=question, decision=decision):
                self._decide(question, decision, agent)
            case _:
                pass

    def _tell_piece(self, event: Piece, program: str, agent: str) -> None:
        match event:
            case events.TextDelta(text=text):
                self._add(event.path, program, "", text, agent)
            case events.FieldDelta(field=name, text=text):
                if self._is_shown_field(name, agent):
                    self._add(event.path, program, name, text, agent)
            case events.ThoughtDelta(text=text):
                self._add(event.path, program, None, text, agent)
            case events.Preamble(field=name, text=text):
                self._tell_preamble(event.path, program, name, text, agent)
            case events.CallDelta():
                self._answering.discard(event.path)  # fields that follow are arguments
                self._tell_call_piece(event, program, agent)

    def _tell_preamble(self, path: str, program: str, name: str, text: str, agent: str) -> None:
        """The text so far is not the output: it stays where it is, or is void."""
        shown_text = self._texts.get(self._text_id(path, program, name, agent))
        if shown_text is not None and shown_text.program == program:
            is_said = "".join(shown_text.pieces).strip() == text.strip()
            shown_text.is_preamble = is_said
            if name and self._outputs.get(name) is shown_text:
                del self._outputs[name]
            self._close([shown_text], is_void=not is_said)
            if is_said:
                return
        if text.strip() and self._is_shown_field(name, agent):
            self._add(path, program, name, text, agent)
            self._tell_preamble(path, program, name, text, agent)

    def _recall_texts(self, path: str, program: str, response: Response, agent: str) -> None:
        """Show what an answer from a journal says beside the outputs."""
        if response.reasoning:
            self._add(path, program, None, response.reasoning, agent)
        text = (response.text or "").strip()
        if text and response.tool_calls:
            self._answering.add(path)
            name = self._text_fields.get(program, "")
            self._tell_preamble(path, program, name, response.text or "", agent)
        elif text:
            self._answers[text] = path

    def _tell_call_piece(self, event: events.CallDelta, program: str, agent: str) -> None:
        name, call_id = event.name, event.tool_call_id
        if not call_id or not name or name in _HIDDEN_CALLS:
            return  # a call without an id is shown when it starts
        self._close_thoughts(program)
        shown_id = self._shown_id(program, call_id)
        call = self._calls.get(shown_id)
        if call is None:
            call = self._open(shown_id, program, call_id, name, agent, number=event.index)
        is_next = call.streams and call.number == event.index
        if is_next and event.text and not call.is_known:
            self._page.add_arguments(call, event.text)

    # -- texts

    def _add(self, path: str, program: str, name: str | None, text: str, agent: str) -> None:
        is_output = bool(name) and not agent
        key = self._text_id(path, program, name, agent)
        shown_text = self._texts.get(key)
        is_of_another = shown_text is not None and shown_text.program != program
        if is_of_another or (path, name) in self._unshown:
            self._unshown.add((path, name))
            return
        if shown_text is None:
            if name is not None:
                self._close_thoughts(program)
            shown_text = ShownText(key, program, agent, name)
            if name and is_output:
                self._replace(name)
                self._outputs[name] = shown_text
            self._texts[key] = shown_text
            self._page.open_text(shown_text)
        shown_text.pieces.append(text)
        self._page.add_text(shown_text, text)

    def _is_shown_field(self, name: str, agent: str) -> bool:
        is_output = not name or bool(agent) or self._fields is None or name in self._fields
        return is_output and name not in _HIDDEN_FIELDS

    def _text_id(self, path: str, program: str, name: str | None, agent: str) -> str:
        """The id of a text: the same, whether it is streamed or read from a journal.

        The text of a native answer may precede calls, so each answer has an id of its own.
        """
        is_text = path in self._answering and self._text_fields.get(program) == name
        if name and not agent and not is_text and self._answer_number == 1:
            return f"{self._run_id}#{name}"
        if name and not agent and not is_text:
            return f"{self._run_id}#{name}~{self._answer_number}"
        if name is None:
            return f"{self._run_id}/{path}#thoughts"
        return f"{self._run_id}/{path}#{name or 'text'}"

    def _texts_of(self, program: str) -> list[ShownText]:
        return [text for text in self._texts.values() if text.program == program]

    def _close_thoughts(self, program: str) -> None:
        self._close([text for text in self._texts_of(program) if text.is_thought])

    def _close(self, texts: Iterable[ShownText], *, is_void: bool = False) -> None:
        for text in texts:
            del self._texts[text.id]
            void = is_void and text.name is not None
            if void and text.name and self._outputs.get(text.name) is text:
                del self._outputs[text.name]
            self._page.close_text(text, is_void=void)

    def _replace(self, name: str) -> None:
        latest = self._outputs.pop(name, None)
        if latest is not None:
            self._page.replace_text(latest)

    def _tell_outputs(self, prediction: Any) -> None:
        """Show outputs that were not streamed, or whose value differs from the streamed text."""
        if not isinstance(prediction, Prediction):
            return
        for name, value in prediction.items():
            if isinstance(value, Type):  # an image, for example, is in the result
                continue
            text = value
            if not isinstance(text, str):
                text = json_text(form_of(value))
            latest = self._outputs.get(name)
            if not text or (latest is not None and _is_shown(latest, value)):
                continue
            if latest is not None and latest.id in self._texts:
                self._close([latest], is_void=True)
            path = self._answers.get(text.strip(), "")
            if path:
                self._answering.add(path)
            self._add(path, path.rpartition("/")[0], name, text, "")

    # -- calls and questions

    def _open(
        self,
        shown_id: str,
        program: str,
        call_id: str | None,
        name: str,
        agent: str,
        *,
        number: int | None = None,
    ) -> ShownCall:
        is_known = shown_id in self._known
        call = ShownCall(shown_id, program, agent, name, call_id, number, is_known=is_known)
        self._calls[shown_id] = call
        if not call.is_known:
            self._page.open_call(call)
        return call

    def _calls_of(self, program: str) -> list[ShownCall]:
        return [call for call in self._calls.values() if call.program == program]

    def _end_calls(self, calls: Iterable[ShownCall]) -> None:
        for call in calls:
            if call.streams:
                call.streams = False
                if not call.is_known:
                    self._page.end_arguments(call)

    def _ready(self, program: str, tool_call: ToolCall, agent: str) -> ShownCall:
        """Show a call with its arguments, unless the page has it from an earlier response."""
        shown_id = self._shown_id(program, tool_call.id)
        call = self._calls.get(shown_id)
        if call is None:
            call = self._open(shown_id, program, tool_call.id, tool_call.name, agent)
            if not call.is_known:
                self._page.add_arguments(call, json_text(tool_call.args))
        self._end_calls([call])
        if not call.is_ready:
            call.is_ready = True
            self._page.ready(call, tool_call)
        return call

    def _settle(self, call: ShownCall, content: Any, *, is_error: bool) -> None:
        self._forget(call)
        self._page.settle(call, content, is_error=is_error)

    def _forget(self, call: ShownCall) -> None:
        del self._calls[call.id]
        base = tool_call_id(self._run_id, call.program, call.made_id)
        self._settled[base] = self._settled.get(base, 0) + 1

    def _shown_id(self, program: str, call_id: str | None) -> str:
        base = tool_call_id(self._run_id, program, call_id)
        count = self._settled.get(base, 0)
        if not count:
            return base
        return f"{base}~{count + 1}"

    def _decide(self, question: Question, decision: Decision, agent: str) -> None:
        self._questions.pop(question.id, None)
        if decision.via.startswith(("grant:", "policy")):
            return  # the page did not get the question
        program = question.path.strip("/")
        # The page has the question, from this response or an earlier one.
        self._known.add(self._shown_id(program, question.call.id))
        call = self._ready(program, question.call, agent)
        if decision.kind == "deny":
            self._forget(call)
            self._page.deny(call, decision.text)

    # -- agents

    def _enter(self, agent: str, parent_id: str) -> None:
        if agent in self._agents:
            return
        call_path = agent.rpartition("/")[0]
        outer = agent_path(call_path)
        if outer:
            self._enter(outer, "")
        self._agents[agent] = None
        call_id = self._places.get(call_path)
        if call_id is None and parent_id:
            call_id = tool_call_id(self._run_id, call_path.rpartition("/")[0], parent_id)
        self._page.enter(agent, outer, call_id)

    def _leave(self, agents: Iterable[str], status: str, prediction: Any = None) -> None:
        for agent in agents:
            # Events from a journal do not end texts and calls.
            self._close([text for text in self._texts.values() if text.agent == agent])
            self._end_calls([call for call in self._calls.values() if call.agent == agent])
            del self._agents[agent]
            questions = [
                question for question, call in self._questions.values() if call.agent == agent
            ]
            self._page.leave(agent, status, prediction, questions)


def _is_shown(text: ShownText, value: Any) -> bool:
    """Whether the streamed text of an output is its value. Values that are not text are trusted."""
    return not isinstance(value, str) or "".join(text.pieces).strip() == value.strip()
