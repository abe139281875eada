"""Asks a model one question, and parses its answer or answers.

If an answer cannot be parsed, the model gets it back with the problems, `adapter.repairs` times.
Then the fallback adapter asks once, in its own form. If that fails, too, `AdapterParseError` is
raised, with the first error as its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule import events
from ferrule.acts import Act, CallModel, Tell
from ferrule.adapters.native_text import text_output
from ferrule.errors import (
    AdapterParseError,
    BadRequestError,
    LimitReachedError,
    RefusalError,
    shown,
)
from ferrule.models.several import SeveralLM
from ferrule.models.wires.anthropic.pausing import PAUSED, continued
from ferrule.programs.asking.validators import Judged
from ferrule.values.conversation.exchange import FieldReader, Request, Response

if TYPE_CHECKING:
    from ferrule.adapters.adapter import Adapter
    from ferrule.programs.asking.asker import Asker
    from ferrule.values.conversation.message import Messages
    from ferrule.values.signatures.signature import Signature

_LONGEST_SUMMARY = 300
Answering = Generator[Act, Any, tuple[dict[str, Any], Response]]
ReadAnswer = Callable[["Adapter", Response], dict[str, Any]]
"""Parses an answer in the form of an adapter."""
Check = Callable[["Adapter", dict[str, Any], Response], Generator[Act, Any, dict[str, Any]]]
"""Checks the fields of an answer, by acts of the program.

It raises `AdapterParseError` with what the model must correct.
"""
_MOST_PAUSES = 50
"""How often one answer may pause, for a server whose answers never end: usually a limit of the run
is reached earlier."""
_UNPARSED = "output that does not match the expected"
"""Part of the error (status 500) of llama.cpp's server if it cannot parse its model's calls."""


def ask_model(
    asker: Asker,
    signature: type[Signature],
    request: Request,
    render: Callable[[Adapter], Messages],
    *,
    read: ReadAnswer | None = None,
    reader: Callable[[Adapter], FieldReader] | None = None,
    check: Check | None = None,
) -> Answering:
    """Ask the model; returns the parsed fields, and the response they come from.

    Args:
        asker: The model, its settings, and the first adapter.
        signature: The outputs to ask for.
        request: The question, rendered by the first adapter.
        render: Renders the messages of the question again for the fallback adapter.
        read: Replaces `adapter.read`.
        reader: Makes the reader that splits a streamed answer into fields.
        check: Checks the fields of each answer, and returns them.

    Raises:
        AdapterParseError: No answer can be parsed. Its cause is the first such error.
        RefusalError: The model declined, or its provider cut the answer off.

    """
    adapter, other_adapter = asker.adapter, asker.adapter.fallback
    is_observed = asker.conditions.is_observed
    parse = partial(_parse, signature=signature, read=read)
    first: AdapterParseError | None = None
    latest: AdapterParseError | None = None
    fallback_attempt = 2 + adapter.repairs
    last_attempt = fallback_attempt
    if adapter.fallback is None:
        last_attempt -= 1
    attempt = 0
    while True:
        attempt += 1
        is_fallback = attempt == fallback_attempt
        if is_fallback and adapter.fallback is not None:
            adapter, other_adapter = adapter.fallback, adapter
            request = asker.request(
                signature,
                render(adapter),
                tools=request.tools,
                secrets=request.secrets,
                adapter=adapter,
            )
        make_reader: Callable[[], FieldReader] | None = None
        if is_observed:
            make_reader = partial(adapter.reader, signature)
            if reader is not None:
                make_reader = partial(reader, adapter)
            name, number_of_tools = type(adapter).__name__, len(request.tools)
            yield Tell(
                events.Formatted(
                    request.digest, attempt, name, len(request.messages), number_of_tools
                )
            )
        response: Response | None = None
        try:
            response = yield from _call_model(
                adapter, request, asker.lm, make_reader, attempt, latest
            )
            try:
                if is_observed:
                    parsing = partial(parse, adapter, response)
                    fields = yield from _observed(parsing, adapter, request, response, attempt)
                else:
                    fields = parse(adapter, response)
            except AdapterParseError as error:
                fields = _parse_in_other_form(
                    parse, other_adapter, response, error, is_fallback=is_fallback
                )
            if check is not None:
                fields = yield from check(adapter, fields, response)
        except AdapterParseError as error:
            error.signature = error.signature or signature
            if not is_fallback:
                yield Tell(events.AttemptFailed(str(error), attempt))
            if attempt == last_attempt:
                if first is None:
                    raise
                raise error from first
            first, latest = first or error, error
            repair = adapter.repair_messages(
                signature, response or Response(), error, native=len(request.tools) > 0
            )
            request = request.following(request.messages.then(*repair))
        else:
            return fields, response


def _summary(error: AdapterParseError) -> str:
    """The problems of an answer in one line."""
    problems = [f"`{name}`: {problem}" if name else problem for name, problem in error.problems]
    text = "; ".join(problems).rstrip(".")
    if len(text) > _LONGEST_SUMMARY:
        text = f"{text[: _LONGEST_SUMMARY - 1]}…"
    return text


def read_text_answer(
    adapter: Adapter, signature: type[Signature], response: Response
) -> dict[str, Any]:
    """Parse an answer whose text needs no form: it is the only text output.

    A model may use the adapter's form nevertheless.
    """
    try:
        return adapter.read(signature, response, lenient=True)
    except AdapterParseError:
        name, text = text_output(signature), response.text or ""
        is_whole = text.strip() and response.finish_reason != "length"
        if not name or not is_whole or not adapter.writes_as_native_text(signature):
            raise
        return {**dict.fromkeys(signature.plan.outputs), name: text}


def _call_model(
    adapter: Adapter,
    request: Request,
    lm: Any,
    make_reader: Callable[[], FieldReader] | None,
    attempt: int,
    latest: AdapterParseError | None,
) -> Generator[Act, Any, Response]:
    """Call the model, and again while its answer pauses.

    Raises `AdapterParseError` if the model's server cannot parse its calls: the model can correct
    them. A `LimitReachedError` names the problem of the `latest` answer, which the limit kept the
    model from correcting.
    """
    try:
        response: Response = yield CallModel(request, lm, make_reader, attempt)
        for _ in range(_MOST_PAUSES):
            if response.finish_reason != PAUSED:
                break
            continuation = request.following(request.messages.then(response.message()))
            rest = yield CallModel(continuation, lm, make_reader, attempt)
            response = continued(response, rest)
        return response
    except LimitReachedError as error:
        if latest is None or error.is_of_batch:
            raise
        raise error.after(_summary(latest)) from latest
    except BadRequestError as error:
        if _UNPARSED not in str(error):
            raise
        problem = (
            "the server could not parse it: "
            "it does not have the form in which this model writes calls"
        )
        code = "invalid_outputs"
        if request.tools:
            code = "invalid_tool_calls"
        name = type(adapter).__name__
        raise AdapterParseError(name, "", [("", problem)], code=code) from error


def _observed(
    parse: Callable[[], dict[str, Any]],
    adapter: Adapter,
    request: Request,
    response: Response,
    attempt: int,
) -> Generator[Act, Any, dict[str, Any]]:
    """Parse an answer, with events for the start and, on every path, the end."""
    name, calls = type(adapter).__name__, len(response.tool_calls)
    yield Tell(events.ParseStarted(request.digest, attempt, name, calls))
    try:
        fields = parse()
    except BaseException as error:
        # By name: `sys.exception()` may be one that the caller of the program is handling.
        yield Tell(events.ParseFinished(request.digest, attempt, name, calls, (), error))
        raise
    yield Tell(events.ParseFinished(request.digest, attempt, name, calls, tuple(fields)))
    return fields


def _parse(
    adapter: Adapter, response: Response, *, signature: type[Signature], read: ReadAnswer | None
) -> dict[str, Any]:
    if response.refusal and not response.text and not response.tool_calls:
        raise RefusalError(f"The model declined: {response.refusal}")
    is_filtered = response.finish_reason == "content_filter"
    if is_filtered and not response.tool_calls and not response.others:
        # A part of the answer would pass as the whole.
        raise RefusalError(
            f"The provider's content filter cut the answer off: {shown(response.text)}"
        )
    if read is None:
        return adapter.read(signature, response)
    return read(adapter, response)


def _parse_in_other_form(
    parse: Callable[[Adapter, Response], dict[str, Any]],
    other_adapter: Adapter | None,
    response: Response,
    error: AdapterParseError,
    *,
    is_fallback: bool,
) -> dict[str, Any]:
    """Parse an answer that its adapter cannot read, in the form of the other adapter.

    It may have the form of the fallback adapter: models trained on JSON often answer in JSON. An
    answer to the fallback adapter (`is_fallback`) may still have the form of the first one. If
    neither can read it, this raises the error that says more.
    """
    looks_like_json = (response.text or "").lstrip().startswith(("{", "```"))
    if other_adapter is None or looks_like_json != other_adapter.reads_values:
        raise error
    try:
        return parse(other_adapter, response)
    except AdapterParseError as other_error:
        if is_fallback and len(other_error.absent) < len(error.absent):
            raise
    raise error


# -- several answers

Answers = list[tuple[dict[str, Any], Response]]
Judge = Callable[[Sequence[dict[str, Any]]], Generator[Act, Any, list[Judged]]]
"""For the outputs of each answer, those after validation, or objections."""


def ask_several(
    asker: Asker,
    signature: type[Signature],
    request: Request,
    render: Callable[[Adapter], Messages],
    read: ReadAnswer,
    *,
    judge: Judge,
) -> Generator[Act, Any, Answers]:
    """Ask for `asker.n` answers; returns those that can be parsed, with their responses.

    If none can, the model must correct the first, as if it were the only one.
    """
    readable: Answers = []
    errors: list[AdapterParseError] = []

    def read_all(adapter: Adapter, response: Response) -> dict[str, Any]:
        readable.clear()
        errors.clear()
        for answer in (response, *response.others):
            try:
                readable.append((read(adapter, answer), answer))
            except AdapterParseError as error:
                errors.append(error)
        if not readable:
            raise errors[0]
        return readable[0][0]

    def check_all(
        adapter: Adapter, _fields: dict[str, Any], first: Response
    ) -> Generator[Act, Any, dict[str, Any]]:
        judged = yield from judge([outputs for outputs, _ in readable])
        accepted: Answers = []
        for (_, response), (outputs, _) in zip(readable, judged, strict=True):
            if outputs is not None:
                accepted.append((outputs, response))
        if not accepted:
            # The model corrects the first answer, so it needs the problem of that one.
            outputs, response = readable[0]
            if response is not first:
                raise errors[0]
            _, problems = judged[0]
            raise rejected(adapter, response, outputs, problems)
        readable[:] = accepted
        return readable[0][0]

    several = replace(asker, lm=SeveralLM(asker.lm, asker.n))
    yield from ask_model(several, signature, request, render, read=read_all, check=check_all)
    return readable


# -- objections of validators


def rejected(
    adapter: Adapter,
    response: Response,
    outputs: dict[str, Any],
    problems: Sequence[tuple[str, str]],
) -> AdapterParseError:
    """The error for outputs to which a validator objects."""
    return AdapterParseError(type(adapter).__name__, response.text or "", problems, parsed=outputs)
