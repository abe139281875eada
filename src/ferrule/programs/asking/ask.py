"""Asks a model for fields: one call, whose answer is parsed. If that fails, the model must repair it; then the fallback adapter asks.

It also prepares a question: the keywords of the program's call, the choice of model, adapter and
settings, and whether tools are declared to the model (native calls) or listed in the prompt (calls
in text).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ferrule import events
from ferrule.acts import Act, CallModel, Conditions, Once, Tell, Within
from ferrule.adapters.chat import ChatAdapter
from ferrule.adapters.fields import tool_inputs
from ferrule.errors import (
    AdapterParseError,
    BadRequestError,
    ConfigurationError,
    InputError,
    RefusalError,
    ToolCallError,
    shown,
)
from ferrule.models.model import as_model
from ferrule.programs.asking.refusals import reminded, warn_of_text
from ferrule.values.conversation.exchange import (
    NO_TOOLS,
    Calls,
    Capabilities,
    Declarations,
    FieldReader,
    Request,
    Response,
    Shape,
)
from ferrule.values.signatures.compiled import InvalidOutputsError, compiled

if TYPE_CHECKING:
    from ferrule.adapters.adapter import Adapter
    from ferrule.errors import FerruleError
    from ferrule.tools.toolbox import Toolbox
    from ferrule.values.conversation.message import Messages
    from ferrule.values.signatures.signature import Signature

Answering = Generator[Act, Any, tuple[dict[str, Any], Response]]
_Read = Callable[["Adapter", Response], dict[str, Any]] | None
Check = Callable[["Adapter", dict[str, Any], Response], Generator[Act, Any, None]]
"""Checks the fields of an answer, by acts of the program; raises `AdapterParseError` with what the model must correct."""
_UNPARSED = "output that does not match the expected"
"""Part of the error (status 500) of llama.cpp's server when it cannot parse the calls that its model wrote."""
_MADE_INPUTS = "inputs"
_NO_ANSWER = Response()
_CALL = Shape("call")
_DEFAULT_ADAPTER = ChatAdapter(use_native_function_calling=None)
"""Used if the settings have no adapter: the model's capabilities choose between native calls and calls in text."""


class Asker(Struct):
    """The model, adapter and settings with which one program asks during one run; fixed when the program is called."""

    lm: Any
    adapter: Adapter
    config: Mapping[str, Any]
    """Sampling settings of this program and this call."""
    capabilities: Capabilities
    tool_choice: str | Mapping[str, Any] | None = None
    parallel: bool | None = None
    conditions: Conditions = Conditions()
    n: int = 1
    """How many answers the program asks for; the others are `prediction.completions`."""
    constrained: bool = False
    """Whether calls of declared tools are valid by construction."""

    def request(
        self,
        signature: type[Signature],
        messages: Messages,
        *,
        tools: Declarations = NO_TOOLS,
        adapter: Adapter | None = None,
    ) -> Request:
        """Let the adapter make a request.

        A user's adapter may also return the body of an OpenAI chat request; anything else raises
        `ToolCallError` (`invalid_request`).
        """
        made: Any = (adapter or self.adapter).request(
            signature,
            messages,
            tools=tools,
            tool_choice=self.tool_choice,
            parallel=self.parallel,
            settings=self.config,
            capabilities=self.capabilities,
        )
        made = made if type(made) is Request else _as_request(made)
        if self.constrained and len(made.tools):
            made.shape = _CALL
        return made


def make_asker(
    lm: Any,
    config: Mapping[str, Any],
    own: Mapping[str, Any],
    *,
    calls: Calls | None,
    may_ask_several: bool = False,
    must_call: bool = False,
) -> Generator[Act, Any, Asker]:
    """Choose model, adapter and sampling settings for a run: first those of the call (`own`), then the program's, then the settings'.

    `calls` is how the program wants tools called. If it is None, a model that refused tools before
    is not sent any again. With `must_call`, a constrained answer must be a call.
    """
    conditions: Conditions = (yield Within(lm=own.get("lm"))) or Conditions()
    if _MADE_INPUTS in conditions.due:
        # Recorded by a version whose inputs had factories; all others are taken by now.
        yield Once(bool, _MADE_INPUTS, only_if_true=True)
    found = own.get("lm")
    if found is None:
        found = conditions.lm if lm is None else lm
    if found is None:
        msg = "No language model is set. Call `ferrule.configure(lm=LM('provider/model'))`, or give the program one: `program(lm=..., ...)`."
        raise ConfigurationError(msg)
    model = as_model(found)
    merged: dict[str, Any] = {**config, **config_of_call(own.get("config"))}
    choice, parallel = merged.pop("tool_choice", None), merged.pop("parallel_tool_calls", None)
    wanted = merged.pop("n", None)
    n = 1 if wanted is None else check_positive("n", wanted)
    if n > 1 and not may_ask_several:
        msg = (
            f"`n={n}` asks for several answers to one question. A program with tools continues from one answer: "
            "leave `n` out, and run the program several times, for example with `batch`."
        )
        raise ConfigurationError(msg)
    able = model.capabilities.constrained_calls
    if calls == "constrained" and not able:
        msg = (
            f"`{model.name}` cannot constrain its calls. Models in this process can, and servers that take a grammar, as "
            "`LM(...).constrained()`: docs/how-to/models/local-models.md. "
            'For the strict mode of a provider, use `LM(..., strict_tools=True)` with `calls="native"`.'
        )
        raise ConfigurationError(msg)
    if calls is None:
        model = reminded(model)
    constrained = able and calls in {None, "constrained"}
    if constrained and must_call and choice is None:
        choice = "required"
    return Asker(
        model,
        conditions.adapter or _DEFAULT_ADAPTER,
        merged,
        model.capabilities,
        choice,
        parallel,
        conditions,
        n,
        constrained,
    )


def ask_model(
    asker: Asker,
    signature: type[Signature],
    request: Request,
    render: Callable[[Adapter], Messages],
    *,
    read: _Read = None,
    reader: Callable[[Adapter], FieldReader] | None = None,
    check: Check | None = None,
) -> Answering:
    """Ask the model; returns the parsed fields, and the response they come from.

    `request` is the rendered question; `render` renders its messages again for another adapter;
    `read` replaces `adapter.read`; `reader` splits a streamed answer into fields; `check` checks
    the fields of each answer. Raises `AdapterParseError` if no answer can be parsed after
    `adapter.repairs` repairs and one try with the fallback adapter; its cause is the first such
    error.
    """
    adapter, is_observed = asker.adapter, asker.conditions.is_observed
    attempt, last = 0, 2 + adapter.repairs
    first: AdapterParseError | None = None
    latest = first
    while (
        attempt < last
    ):  # not a `range`, which costs a function call: nearly every answer is parsed at the first attempt
        attempt += 1
        if attempt == last:
            if adapter.fallback is None:
                break
            adapter = adapter.fallback
            request = asker.request(
                signature,
                render(adapter),
                tools=request.tools,
                adapter=adapter,
            )
        if is_observed:
            yield Tell(
                events.Formatted(
                    request.digest,
                    attempt,
                    type(adapter).__name__,
                    len(request.messages),
                    len(request.tools),
                ),
            )
        make = (
            (partial(reader, adapter) if reader else partial(adapter.reader, signature))
            if is_observed
            else None
        )
        response = _NO_ANSWER
        try:
            try:
                response = yield CallModel(request, asker.lm, make, attempt)
            except BadRequestError as error:
                if _UNPARSED not in str(error):
                    raise
                raise _unparsed(adapter, request) from error
            try:
                if is_observed:
                    fields = yield from _parse_observed(
                        adapter,
                        signature,
                        request,
                        response,
                        read,
                        attempt,
                    )
                else:
                    fields = _parse(adapter, signature, response, read)
            except AdapterParseError as error:
                fields = _in_another_form(
                    adapter,
                    signature,
                    response,
                    read,
                    error,
                    asker.adapter if attempt == last else None,
                )
            if check is not None:
                yield from check(adapter, fields, response)
        except AdapterParseError as error:
            error.signature = error.signature or signature
            if attempt == last:
                raise error from first
            first, latest = first or error, error
            yield Tell(events.AttemptFailed(str(error), attempt))
            repair = adapter.repair_messages(
                signature,
                response,
                error,
                native=len(request.tools) > 0,
            )
            request = request.following(request.messages.then(*repair))
        else:
            return fields, response
    if latest is first:
        raise first or AssertionError  # the loop ran at least once and did not return
    raise latest or AssertionError from first


def _unparsed(adapter: Adapter, request: Request) -> AdapterParseError:
    problem = (
        "the server could not parse it: it does not have the form in which this model writes calls"
    )
    return AdapterParseError(
        type(adapter).__name__,
        "",
        [("", problem)],
        code="invalid_tool_calls" if request.tools else "invalid_outputs",
    )


def _parse_observed(
    adapter: Adapter,
    signature: type[Signature],
    request: Request,
    response: Response,
    read: _Read,
    attempt: int,
) -> Generator[Act, Any, dict[str, Any]]:
    """`_parse`, with events for its start and, on every path, its end."""
    name, calls = type(adapter).__name__, len(response.tool_calls)
    yield Tell(events.ParseStarted(request.digest, attempt, name, calls))
    try:
        fields = _parse(adapter, signature, response, read)
        outputs = tuple(fields)
    except (
        BaseException
    ) as error:  # by name: `sys.exception()` may be one that the caller of the program is handling
        yield Tell(events.ParseFinished(request.digest, attempt, name, calls, (), error))
        raise
    yield Tell(events.ParseFinished(request.digest, attempt, name, calls, outputs))
    return fields


def _parse(
    adapter: Adapter,
    signature: type[Signature],
    response: Response,
    read: _Read,
) -> dict[str, Any]:
    if response.refusal and not response.text and not response.tool_calls:
        raise RefusalError(f"the model declined: {response.refusal}")
    if (
        response.finish_reason == "content_filter"
        and not response.tool_calls
        and not response.others
    ):  # a part would pass as the whole
        raise RefusalError(
            f"the provider's content filter cut the answer off: {shown(response.text)}",
        )
    return adapter.read(signature, response) if read is None else read(adapter, response)


def validated(
    validate: Callable[[dict[str, Any]], dict[str, Any]],
    adapter: Adapter,
    response: Response,
    outputs: dict[str, Any],
) -> dict[str, Any]:
    """The outputs after validation; raises `AdapterParseError` with the validators' objections, for the model to correct."""
    try:
        return validate(outputs)
    except InvalidOutputsError as error:
        raise rejected(adapter, response, outputs, error.problems) from error


def rejected(
    adapter: Adapter,
    response: Response,
    outputs: dict[str, Any],
    problems: Sequence[tuple[str, str]],
) -> AdapterParseError:
    """The error for outputs to which a validator objects."""
    return AdapterParseError(type(adapter).__name__, response.text or "", problems, parsed=outputs)


def _in_another_form(
    adapter: Adapter, signature: type[Signature], response: Response, read: _Read, error: AdapterParseError, first_form: Adapter | None,
) -> dict[str, Any]:  # fmt: skip
    """Parse an answer that its adapter cannot read, in the form of the other adapter.

    It may have the form of the fallback adapter: models trained on JSON often answer in JSON. An
    answer to the fallback adapter may still have the form of the first one, `first_form`. If
    neither can read it, raises the error that says more.
    """
    is_json = (response.text or "").lstrip().startswith(("{", "```"))
    other = (
        (adapter.fallback if is_json else None)
        if first_form is None
        else None
        if is_json
        else first_form
    )
    if other is None:
        raise error
    try:
        return _parse(other, signature, response, read)
    except AdapterParseError as found:
        if first_form is not None and len(found.absent) < len(error.absent):
            raise
    raise error


def _as_request(made: Any) -> Request:
    if isinstance(made, Request):
        return made
    from ferrule.models.wires.openai_chat.read_request import (
        read_request,
    )  # late: only a user's adapter returns a body

    try:
        return read_request(made)
    except InputError as error:
        msg = f"An adapter's `request` returns a `Request`, found {shown(made)}: {error}"
        raise ToolCallError("invalid_request", msg, raw=made) from error


def choose_calls(calls: Calls | None, native: bool | None) -> Calls | None:
    """How tools are called, from `calls=` and its older form `native=`; raises `ConfigurationError` if they contradict each other."""
    if calls not in {None, *_NATIVE}:
        raise ConfigurationError(
            f'`calls` is "native", "prompted", "constrained" or None, found {shown(calls)}.',
        )
    if calls is None:
        return None if native is None else "native" if native else "prompted"
    if native not in {None, _NATIVE[calls]}:
        raise ConfigurationError(
            f"`calls={calls!r}` and `native={native}` contradict each other. Give `calls` alone.",
        )
    return calls


def as_native(calls: Calls | None) -> bool | None:
    """Whether tools are declared to the model; None if the model's capabilities decide."""
    return None if calls is None else _NATIVE[calls]


_NATIVE: Mapping[str, bool] = {"native": True, "prompted": False, "constrained": True}


def calls_natively(asker: Asker, wanted: bool | None) -> bool:
    """Whether tools are declared to the model: as the program wants, otherwise by the model's capabilities."""
    if wanted is not None or asker.constrained:
        return wanted is not False
    if not asker.capabilities.native_tools:
        warn_of_text(asker.lm, "its capabilities say that it takes no tool declarations")
    return asker.capabilities.native_tools


# -- the keywords of a call
# ---------------------------------------------------------------------------------------


def split_inputs(
    signature: type[Signature],
    inputs: Mapping[str, Any],
    own: Iterable[str],
    toolbox: Toolbox,
) -> Generator[Act, Any, tuple[dict[str, Any], dict[str, Any], Toolbox]]:
    """Split a call's keywords: the program's options, the checked inputs, and the call's tools (`toolbox` and those that inputs declare).

    An input field takes precedence over an option of the same name. Values made by an input's
    factory (an id, a time) are recorded.
    """
    plan, given = compiled(signature), dict(inputs)
    kept = {name: given.pop(name) for name in own if name in given and name not in plan.inputs}
    if tool_inputs(signature):
        from ferrule.programs.tool_use.inputs import (
            declare_tools,
        )  # late: few signatures declare tools

        given, toolbox = declare_tools(signature, given, toolbox)
    if plan.factories:
        made = yield Once(partial(plan.made_inputs, given), _MADE_INPUTS, only_if_true=True)
        given = {**plan.read_made(made), **given} if made else given
    return kept, plan.check_inputs(signature.__name__, given), toolbox


def check_positive(name: str, value: int) -> int:
    """Check an option such as `max_iters`; raises `ConfigurationError` for anything but a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
        raise ConfigurationError(f"`{name}` must be a whole number of at least 1, found {value!r}.")
    return value


def list_demos(demos: Any, error: type[FerruleError]) -> list[Any]:
    """The demos as a new list, empty for None; raises `error` for anything but an iterable. The adapter checks each demo."""
    if not demos and (demos is None or type(demos) is list):  # most programs have none
        return []
    is_one = hasattr(demos, "keys")  # a mapping, or one of DSPy's examples
    if is_one or isinstance(demos, (str, bytes)) or not isinstance(demos, Iterable):
        msg = f"`demos` takes a list of mappings of fields, found {shown(demos)}.{' Write `[...]` around a single one.' if is_one else ''}"
        raise error(msg)
    return list(cast("Iterable[Any]", demos))


def config_of_call(config: Any) -> Mapping[str, Any]:
    """The settings of one call, empty for None; raises `InputError` for anything but a mapping."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise InputError(
            f"`config` takes a mapping of settings by name, such as `{{'temperature': 0}}`; found {shown(config)}.",
        )
    return cast("Mapping[str, Any]", config)
