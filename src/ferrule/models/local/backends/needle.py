"""`NeedleLM`: a small model with its weights on this machine, made by `LM("needle")`.

Needle is a network of 121 million parameters that does two things. Given tools, it chooses calls
and fills their arguments; given a record and a text, it fills the record under a grammar. It does
not write prose. So a request becomes one of the two:

- **Navigation**, while the request offers tools: the question, and the results of each turn as the
  next one. Programs end with `finish`, which the engine does not see. It ends by making no call.
- **Extraction**, for the outputs: the engine reads them from the question and the results, as the
  arguments of one call. An output that is only one text holds the results themselves.

What neither can express is refused by name, before the engine is asked. Instructions are not sent:
the network was not trained to follow them, and reads them as a part of the question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, field
from pydantic_core import from_json

from ferrule.concurrency.offload import in_worker_thread
from ferrule.embedded.engine import Ticket, engine_with
from ferrule.encoding.encode import json_text
from ferrule.errors import BadRequestError, ConfigurationError, shown
from ferrule.models.local.backends.backend import check_no_server
from ferrule.models.local.task import chosen_tools
from ferrule.models.model import BaseLM
from ferrule.models.setting_names import check_spelling
from ferrule.models.wires.payload import list_of, mapping
from ferrule.values.calls.call import ToolCall
from ferrule.values.content.parts import Text
from ferrule.values.conversation.exchange import Capabilities, Response, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ferrule.embedded.engine import NeedleEngine
    from ferrule.values.conversation.exchange import Request
    from ferrule.values.conversation.message import Message

_BUILT_IN = frozenset({"finish", "user_clarification"})
"""Tools of programs, which the engine does not see: it ends by making no call."""
_IGNORED = frozenset({"confidence", "parallel_tool_calls", "seed", "user", "metadata", "store"})
"""Settings that change nothing: the engine always takes the most likely token."""
_MAX_TOKENS = 512
_CALLS = "#/$defs/ToolCalls"
"""The schema of an output of calls."""
_RECORD = "record"
"""The name of the call whose arguments are the outputs."""
_LONGEST_TEXT = 200
"""The longest text that an output may demand: a longer one would be prose."""
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_MARKER = re.compile(r"\[\[ ## (\w+) ## \]\]")
_TAG = re.compile(r"</?(\w+)>")


class NeedleLM(BaseLM):
    """The embedded model. It calls tools and fills records, offline; it does not chat.

    Copies and threads share one process of the engine, and take turns.
    """

    capabilities = Capabilities(json_schema=True, streaming=False)
    is_free = True
    text_calls = "never"

    def __init__(
        self,
        name: str = "needle",
        *,
        weights: str | None = None,
        timeout_s: float | None = 600.0,
        calibrated: bool | None = None,
        **settings: Any,
    ) -> None:
        """Create the model.

        Args:
            name: Its name in logs, events and errors.
            weights: A file of weights (`.cact`); by default that of the package.
            timeout_s: The most seconds of a request, with the wait for other requests.
            calibrated: Whether its confidence means something. By default for the weights of the
                package only: those that were tuned without their confidence head report noise.
            **settings: `max_tokens`.

        """
        check_spelling(settings)
        _check_settings(settings)
        engine_with(weights)  # a missing engine is reported here
        self.name = name
        self.settings: Mapping[str, Any] = settings
        self._weights = weights
        self._timeout_s = timeout_s
        self._is_calibrated = calibrated
        if calibrated is None:
            self._is_calibrated = weights is None

    def copy(self, **settings: Any) -> Self:
        """The same engine with other settings."""
        _check_settings(settings)
        return super().copy(**settings)

    def complete(self, request: Request) -> Response:
        """The next calls, or the outputs."""
        return self._answer(request, Ticket())

    async def acomplete(self, request: Request) -> Response:
        """`complete` in a worker thread. Cancelling kills the engine's process."""
        ticket = Ticket()
        try:
            return await in_worker_thread(lambda: self._answer(request, ticket))
        finally:
            ticket.cancel()

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector of length 1 for each text: near ones have a large scalar product."""
        return self._engine.embed(texts, timeout_s=self._timeout_s)

    @property
    def _engine(self) -> NeedleEngine:
        return engine_with(self._weights)  # in a forked process, another one

    # -- one request

    def _answer(self, request: Request, ticket: Ticket) -> Response:
        settings = {**self.settings, **request.settings}
        _check_settings(settings)
        work = _Work(
            request,
            self.name,
            self._engine,
            max_tokens=_max_tokens(settings),
            timeout_s=self._timeout_s,
            ticket=ticket,
        )
        task = _read_task(request)
        if task.tools and request.tool_choice != "none" and not task.is_ending:
            response = self._navigate(work, task)
            if response.tool_calls:
                return response
            if task.finish is None:
                return self._without_calls(work, task, response)
        return self._end(work, task)

    def _navigate(self, work: _Work, task: _Task) -> Response:
        answer = work.ask(task.tools, task.turns)
        calls = list_of(answer.get("function_calls"))
        if not calls and (_must_call(work.request) or task.demands_calls):
            # The engine holds back calls of which it is not sure. The confidence says so.
            calls = list_of(answer.get("suppressed_calls"))
        calls = [call for call in _each_once(calls) if call not in task.calls]
        if work.request.parallel is False:
            calls = calls[:1]
        confidence = None
        if self._is_calibrated:
            confidence = answer.get("confidence")
        count = len(work.request.messages)
        tool_calls = [
            ToolCall.unchecked(
                call["name"],
                call["arguments"],
                f"call_{count}_{index}",
                confidence=confidence,
            )
            for index, call in enumerate(calls)
        ]
        return work.response("", tool_calls)

    def _without_calls(self, work: _Work, task: _Task, response: Response) -> Response:
        """The answer to a program whose output is calls, where the engine makes none."""
        if task.demands_calls:
            return work.refusal(task)
        if work.request.form is not None:
            return work.response(work.request.form.write({}), [])
        return response

    def _end(self, work: _Work, task: _Task) -> Response:
        """The outputs, in the call of `finish` or as text."""
        schema = task.outputs
        if not schema.get("properties"):
            raise BadRequestError(
                f"`{self.name}` calls tools and fills records, and does not chat: give the program "
                "tools, or outputs to read from the text."
            )
        outputs = self._outputs(work, task, schema)
        if outputs is None:
            return work.refusal(task)
        if task.finish is not None:
            call_id = f"call_{len(work.request.messages)}_0"
            return work.response("", [ToolCall.unchecked("finish", outputs, call_id)])
        form = work.request.form
        if form is None:
            return work.response(json_text(outputs), [])
        return work.response(form.write(outputs), [])

    def _outputs(
        self, work: _Work, task: _Task, schema: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The values of the outputs; None if the engine finds none."""
        properties: dict[str, Any] = dict(schema["properties"])
        _refuse_prose(self.name, properties)
        outputs: dict[str, Any] = {}
        if len(properties) > 1 and _is_text(properties.get("reasoning")):
            # The engine thinks before each answer: its thoughts are the reasoning.
            del properties["reasoning"]
            outputs["reasoning"] = ""
        if len(properties) == 1 and task.offers_tools:
            [(name, only)] = properties.items()
            if _is_text(only):
                if not task.results:
                    return None
                return {**outputs, name: "\n".join(task.results)}
        record = _record(properties, schema)
        answer = work.ask([record], [task.text])
        calls = answer.get("function_calls") or answer.get("suppressed_calls")
        if not calls:
            return None
        values: dict[str, Any] = dict(calls[0].get("arguments") or {})
        for name in _invented(answer, values, task.text):
            values.pop(name, None)
        for name, value in properties.items():
            if name in values:
                outputs[name] = values[name]
            elif _is_nullable(value):
                outputs[name] = None
            elif name in schema.get("required", ()):
                work.missing.append(name)
        if work.missing:
            return None
        if "reasoning" in outputs:
            outputs["reasoning"] = work.reasoning or ""
        return outputs


class _Work:
    """The engine's work for one request."""

    def __init__(self, request: Request, name: str, engine: NeedleEngine, **options: Any) -> None:
        self.request = request
        self.reasoning: str | None = None
        self.missing: list[str] = []
        """The outputs that the engine did not find in the text."""
        self._name = name
        self._engine = engine
        self._options = options

    def ask(self, tools: Sequence[dict[str, Any]], turns: Sequence[str]) -> dict[str, Any]:
        answer = self._engine.complete(tools, turns, **self._options)
        if answer.get("type") == "error" or answer.get("success") is False:
            reason = answer.get("reason") or answer.get("error")
            raise BadRequestError(f"`{self._name}` refuses the request: {shown(reason)}.")
        self.reasoning = answer.get("reasoning") or self.reasoning
        return answer

    def response(self, text: str, calls: Sequence[ToolCall], **fields: Any) -> Response:
        finish_reason = "tool_calls" if calls else "stop"
        return Response(
            text or None,
            tuple(calls),
            reasoning=self.reasoning,
            finish_reason=finish_reason,
            usage=Usage(calls=1),
            model=self._name,
            cost=0.0,
            **fields,
        )

    def refusal(self, task: _Task) -> Response:
        """The answer where the engine called no tool, or did not find the outputs."""
        refusal = "the text does not hold the answer"
        if self.missing:
            names = ", ".join(f"`{name}`" for name in self.missing)
            refusal = f"the text does not give {names}"
        elif task.has_errors:
            refusal = "no call of a tool succeeded, and the question does not hold the answer"
        elif task.offers_tools:
            refusal = "no tool fits the question, and the question does not hold the answer"
        return self.response("", [], refusal=refusal)


def _each_once(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    once: list[dict[str, Any]] = []
    for call in calls:
        entry: dict[str, Any] = {"name": call["name"], "arguments": call.get("arguments") or {}}
        if entry not in once:
            once.append(entry)
    return once


# -- what a request asks for


class _Task(Struct):
    """A request in the engine's terms."""

    tools: list[dict[str, Any]]
    """The declarations, without the tools of programs."""
    finish: Mapping[str, Any] | None
    outputs: Mapping[str, Any]
    """The JSON Schema of the object of outputs."""
    offers_tools: bool
    turns: list[str] = field(default_factory=list[str])
    """The conversation: texts of the user, and lists of results."""
    question: str = ""
    results: list[str] = field(default_factory=list[str])
    """The results that answer the last question, without those of calls that failed."""
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The calls that answer the last question, as the engine writes them.

    It likes to repeat them when it reads their results: a second refund would be the consequence.
    """
    has_errors: bool = False
    """Whether a call for the last question failed, or was not allowed to run."""
    is_ending: bool = False
    """Whether the last turn refused the outputs: they are read again, and no tool is called."""

    @property
    def demands_calls(self) -> bool:
        """Whether calls are an output that must be there."""
        properties = mapping(self.outputs.get("properties"))
        required = list_of(self.outputs.get("required"))
        return any(mapping(properties.get(name)).get("$ref") == _CALLS for name in required)

    @property
    def text(self) -> str:
        """The text to read the outputs from."""
        lines = [self.question, *(f"Result: {result}" for result in self.results)]
        return "\n".join(lines)


def _read_task(request: Request) -> _Task:
    declarations = [tool["function"] for tool in chosen_tools(request)]
    finish = None
    for tool in declarations:
        if tool["name"] == "finish":
            finish = tool
    form, shape = request.form, request.shape
    outputs: Mapping[str, Any] = {}
    if finish is not None:
        outputs = finish["parameters"]
    elif form is not None:
        outputs = form.schema
    elif shape is not None and shape.schema is not None:
        outputs = shape.schema
    tools = [tool for tool in declarations if tool["name"] not in _BUILT_IN]
    task = _Task(tools, finish, outputs, len(request.tools) > 0)
    _read_turns(request, task)
    return task


def _read_turns(request: Request, task: _Task) -> None:
    built_in: set[str | None] = set()
    batch: list[Message] = []
    for message in [*request.messages, None]:
        if message is not None and message.role == "tool":
            batch.append(message)
            continue
        if batch:
            _add_results(task, [result for result in batch if result.tool_call_id not in built_in])
            task.is_ending = batch[-1].tool_call_id in built_in
            batch = []
        if message is None or message.role == "system":
            continue
        if message.role == "assistant":
            calls = message.tool_calls
            built_in = {call.id for call in calls if call.name in _BUILT_IN}
            task.calls += [{"name": call.name, "arguments": call.args} for call in calls]
            continue
        text, has_markup = _plain(message)
        if has_markup or not task.question or task.offers_tools:
            # Without markup, it may also be the reason why an answer could not be read.
            task.question, task.results, task.calls = text, [], []
            task.is_ending = task.has_errors = False
        task.turns.append(text)


def _add_results(task: _Task, batch: Sequence[Message]) -> None:
    if not batch:
        return
    values: list[Any] = []
    for message in batch:
        text = _text_of(message)
        if message.is_error:
            task.has_errors = True
        else:
            task.results.append(text)
        values.append(_value_of(text))
    task.turns.append(json_text(values))


def _value_of(text: str) -> Any:
    """A result as the value that its text shows: the engine reads results as JSON."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return from_json(text)
    except ValueError:
        return text


def _text_of(message: Message) -> str:
    if not isinstance(message.content, str):
        for part in message.content:
            if not isinstance(part, Text):
                raise BadRequestError(
                    f"The embedded model reads text only, found {type(part).__name__} in a "
                    f"message of the role {message.role!r}."
                )
    return message.text


def _plain(message: Message) -> tuple[str, bool]:
    """The inputs in a message of the user without the markup of prompts, and whether it had some.

    A single input is its text; of several, each has its name.
    """
    text = _text_of(message)
    fields = dict(_fields_in(text))
    if not fields:
        return text, False
    if len(fields) == 1:
        return next(iter(fields.values())), True
    return "\n".join(f"{name}: {value}" for name, value in fields.items()), True


def _fields_in(text: str) -> Iterator[tuple[str, str]]:
    """The inputs under the markers of an adapter."""
    if text.startswith("{"):
        try:
            values = from_json(text.split("\n\n", 1)[0])
        except ValueError:
            return
        for name, value in values.items():
            if not isinstance(value, str):
                value = json_text(value)  # noqa: PLW2901  the one that is sent
            yield name, value
        return
    name = ""
    lines: list[str] = []
    for line in text.splitlines():
        marker = _MARKER.fullmatch(line) or _TAG.fullmatch(line)
        if marker is None and not line.startswith("Answer with "):
            lines.append(line)
            continue
        value = "\n".join(lines).strip()
        if name and value:
            yield name, value
        name, lines = "", []
        if marker is not None:
            name = marker[1]


# -- what the engine can express


def _check_settings(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if value is None or name in _IGNORED or name in {"max_tokens", "max_completion_tokens"}:
            continue
        if name in {"temperature", "n"} and value in {0, 1}:
            continue
        raise ConfigurationError(
            f"The embedded model has no setting `{name}`: it always takes the most likely token. "
            "It has `max_tokens`."
        )
    _max_tokens(settings)


def _max_tokens(settings: Mapping[str, Any]) -> int:
    value = settings.get("max_tokens") or settings.get("max_completion_tokens") or _MAX_TOKENS
    if not isinstance(value, int) or value < 1:
        raise ConfigurationError(
            f"`max_tokens` is a whole number of at least 1, found {shown(value)}."
        )
    return value


def _must_call(request: Request) -> bool:
    return request.tool_choice not in {None, "auto", "none"}


def _is_text(schema: Any) -> bool:
    """Whether a value is a text of any form."""
    value = mapping(schema)
    if value.get("type") != "string":
        return False
    return not {"enum", "const", "pattern", "format"}.intersection(value)


def _is_nullable(schema: Mapping[str, Any]) -> bool:
    return any(option.get("type") == "null" for option in schema.get("anyOf", ()))


def _refuse_prose(name: str, properties: Mapping[str, Any]) -> None:
    for output, schema in properties.items():
        if _is_text(schema) and schema.get("minLength", 0) > _LONGEST_TEXT:
            raise BadRequestError(
                f"`{name}` writes no prose: the output `{output}` demands a text of at least "
                f"{schema['minLength']} characters. Use another model for it."
            )


def _record(properties: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs as a tool whose arguments they are.

    An output that may be null is one that may be missing: the engine invents a value otherwise.
    """
    fields: dict[str, Any] = {}
    required: list[str] = []
    for name, value in properties.items():
        fields[name] = value
        if _is_nullable(value):
            options = [option for option in value["anyOf"] if option.get("type") != "null"]
            fields[name] = {**value, "anyOf": options}
            if len(options) == 1:
                rest = {key: part for key, part in value.items() if key != "anyOf"}
                fields[name] = {**rest, **options[0]}
        elif name in schema.get("required", ()):
            required.append(name)
    parameters = {"type": "object", "properties": fields, "required": required}
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    names = ", ".join(properties)
    return {"name": _RECORD, "description": f"Extract {names}.", "parameters": parameters}


def _invented(answer: Mapping[str, Any], values: Mapping[str, Any], text: str) -> list[str]:
    """The outputs whose number is not in the text, as the engine reports it.

    It compares texts: the report is wrong about `4.50` and 4.5, which are one number.
    """
    reported = list_of(mapping(answer.get("validation")).get("ungrounded"))
    numbers = {Decimal(number.replace(",", "")) for number in _NUMBER.findall(text)}
    names: list[str] = []
    for path in reported:
        name = str(path).partition(".")[2]
        if name in values and not _is_among(values[name], numbers):
            names.append(name)
    return names


def _is_among(value: Any, numbers: set[Decimal]) -> bool:
    try:
        return abs(Decimal(str(value))) in numbers
    except InvalidOperation:
        return True  # a text: the grammar cannot copy every text letter by letter


def needle_lm(name: str, settings: dict[str, Any]) -> NeedleLM:
    """The model with a name such as `"needle"` or `"needle:/path/to.cact"`."""
    check_no_server(name, {key: value for key, value in settings.items() if key != "timeout_s"})
    _, separator, path = name.partition(":")
    if separator and not path:
        raise ConfigurationError(
            'Which weights? Name a file: LM("needle:/path/to.cact"), or none for those of the '
            'package: LM("needle").'
        )
    return NeedleLM(name, weights=path or None, **settings)
