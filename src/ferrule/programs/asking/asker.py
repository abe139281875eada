"""Prepares a question: the keywords of the program's call, and the choice of model and adapter.

It also decides how the model calls tools: whether they are declared in the request (native calls)
or listed in the prompt (calls in text).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ferrule.acts import Act, Conditions, Once, Within
from ferrule.adapters.adapter import Adapter
from ferrule.adapters.chat import ChatAdapter
from ferrule.adapters.fields import tool_inputs
from ferrule.approval.policy import declared_under
from ferrule.errors import (
    ConfigurationError,
    InputError,
    ToolCallError,
    check_flag,
    shown,
)
from ferrule.models.calls_in_text import reads_prompted_calls
from ferrule.models.model import as_model
from ferrule.models.providers import refuse_unsupported
from ferrule.models.wires.openai_chat.read_request import read_request
from ferrule.programs.asking.refusals import reminded, warn_of_text
from ferrule.programs.tool_use.inputs import declare_tools
from ferrule.values.conversation.exchange import (
    NO_TOOLS,
    Calls,
    Capabilities,
    Declarations,
    Request,
    Shape,
)
from ferrule.values.provider_tools import ProviderTool
from ferrule.values.signatures.compiled import compiled

if TYPE_CHECKING:
    from ferrule.approval.policy import Policy
    from ferrule.errors import FerruleError
    from ferrule.models.model import Model
    from ferrule.tools.toolbox import Toolbox
    from ferrule.values.calls.secrets import Secrets
    from ferrule.values.conversation.message import Messages
    from ferrule.values.signatures.signature import Signature

_MADE_INPUTS = "inputs"
"""The name of the act that records inputs which a factory made."""
_FORM_ONLY = "calls in the form of the prompt only"
"""The name of the act that records that other forms are not read."""
_CALL = Shape("call")
DEFAULT_ADAPTER = ChatAdapter(use_native_function_calling=None)
"""Used if the settings have no adapter: the model's capabilities choose how tools are called."""


class Asker(Struct):
    """The model, adapter and settings with which one program asks during one run.

    They are fixed when the program is called.
    """

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
    provider_tools: tuple[ProviderTool, ...] = ()
    """The tools that the model's provider runs, without those that a policy denies."""
    reads_other_forms: bool = True
    """Whether calls in the text may have another form than the one that the prompt asks for."""

    def request(
        self,
        signature: type[Signature],
        messages: Messages,
        *,
        tools: Declarations = NO_TOOLS,
        secrets: Secrets | None = None,
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
        request = _as_request(made)
        if self.constrained and len(request.tools):
            request.shape = _CALL
        if secrets:
            request.secrets = secrets
        if self.provider_tools:
            request.provider_tools = self.provider_tools
        return request


def _as_request(made: Any) -> Request:
    if isinstance(made, Request):
        return made
    try:
        return read_request(made)
    except InputError as error:
        msg = f"An adapter's `request` returns a `Request`, found {shown(made)}: {error}"
        raise ToolCallError("invalid_request", msg, raw=made) from error


def make_asker(
    lm: Any,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    calls: Calls | None,
    may_ask_several: bool = False,
    must_call: bool = False,
    provider_tools: tuple[ProviderTool, ...] = (),
    policy: Policy | None = None,
) -> Generator[Act, Any, Asker]:
    """Choose model, adapter and sampling settings for a run.

    The `options` of the call come first, then `lm` and `config` of the program, then the settings.
    An overriding model replaces the first two.
    `calls` is how the program wants tools called. If it is None, a model that refused tools before
    is not sent any again. With `must_call`, a constrained answer must be a call.
    `provider_tools` are those of the program, and `policy` is its own.
    """
    conditions: Conditions = (yield Within(lm=options.get("lm"))) or Conditions()
    if _MADE_INPUTS in conditions.due:
        # Recorded by a version of the program whose inputs had factories.
        yield Once(bool, _MADE_INPUTS, only_if_true=True)
    candidates = [options.get("lm"), lm, conditions.lm]
    if conditions.is_lm_overridden:
        candidates = [conditions.lm]
    model = _choose_model(candidates)
    settings: dict[str, Any] = {**config, **config_of_call(options.get("config"))}
    tool_choice = settings.pop("tool_choice", None)
    parallel = settings.pop("parallel_tool_calls", None)
    n = _number_of_answers(settings.pop("n", None), may_ask_several=may_ask_several)
    can_constrain = model.capabilities.constrained_calls
    if calls == "constrained" and not can_constrain:
        raise ConfigurationError(
            f"`{model.name}` cannot constrain its calls. Models in this process can, and servers "
            "that take a grammar, as `LM(...).constrained()`: docs/how-to/models/local-models.md. "
            "For the strict mode of a provider, use `LM(..., strict_tools=True)` with "
            '`calls="native"`.'
        )
    if provider_tools:
        policies = [rules for rules in (conditions.policy, policy) if rules is not None]
        provider_tools = declared_under(policies, provider_tools)
        refuse_unsupported(model.name, model.capabilities.provider_tools or (), provider_tools)
    if calls is None:
        model = reminded(model)
    constrained = can_constrain and calls in {None, "constrained"}
    if constrained and must_call and tool_choice is None:
        tool_choice = "required"
    reads_other_forms = reads_prompted_calls(model)
    if not reads_other_forms or _FORM_ONLY in conditions.due:
        # Recorded, so that a resumed run reads its answers as before, even with another model.
        form_only = yield Once(lambda: not reads_prompted_calls(model), _FORM_ONLY, True)
        reads_other_forms = not form_only
    return Asker(
        model,
        conditions.adapter or DEFAULT_ADAPTER,
        settings,
        model.capabilities,
        tool_choice,
        parallel,
        conditions,
        n,
        constrained,
        provider_tools,
        reads_other_forms,
    )


def _choose_model(candidates: Iterable[Any]) -> Model:
    for candidate in candidates:
        if candidate is not None:
            return as_model(candidate)
    raise ConfigurationError(
        "No language model is set. Call `ferrule.configure(lm=LM('provider/model'))`, "
        "or give the program one: `program(lm=..., ...)`."
    )


def _number_of_answers(n: Any, *, may_ask_several: bool) -> int:
    if n is None:
        return 1
    check_positive("n", n)
    if n > 1 and not may_ask_several:
        raise ConfigurationError(
            f"`n={n}` asks for several answers to one question. A program with tools continues "
            "from one answer: leave `n` out, and run the program several times, for example with "
            "`batch`."
        )
    return n


# -- how tools are called

_DECLARES_TOOLS: Mapping[str, bool] = {"native": True, "prompted": False, "constrained": True}
"""The ways to call tools, and whether the request declares the tools."""


def check_calls(calls: Any, config: dict[str, Any]) -> Calls | None:
    """Check the option `calls`; also takes its other spelling, `native=`, out of `config`.

    `native=True` is `calls="native"`, `native=False` is `calls="prompted"`. Raises
    `ConfigurationError` for another value, and if the two contradict each other.
    """
    native = config.pop("native", None)
    if native is not None:
        check_flag("native", native)
    if calls not in {None, *_DECLARES_TOOLS}:
        raise ConfigurationError(
            f'`calls` is "native", "prompted", "constrained", "code" or None, found {shown(calls)}.'
        )
    if calls is None:
        return calls_of_native(native)
    if native not in {None, _DECLARES_TOOLS[calls]}:
        raise ConfigurationError(
            f"`calls={calls!r}` and `native={native}` contradict each other. Give `calls` alone."
        )
    return calls


def calls_of_native(native: bool | None) -> Calls | None:
    """The value of `calls` that `native` stands for."""
    if native is None:
        return None
    return "native" if native else "prompted"


def declares_tools(calls: Calls | None) -> bool | None:
    """Whether tools are declared to the model; None if the model's capabilities decide."""
    if calls is None:
        return None
    return _DECLARES_TOOLS[calls]


def calls_natively(asker: Asker, wanted: bool | None) -> bool:
    """Whether tools are declared to the model: as the program wants, or as the model can."""
    native = wanted
    if native is None:
        native = asker.constrained or asker.capabilities.native_tools
        if not native:
            warn_of_text(asker.lm, "its capabilities say that it takes no tool declarations")
    if not native and any(tool.kind == "tool_search" for tool in asker.provider_tools):
        raise ConfigurationError(
            'With `Toolbox(search="provider")`, tools are declared to the model, and here their '
            "calls would be written in text: nothing was sent. Leave out `calls=` and `native=`, "
            'or use `search="bm25"`, which works with any model.'
        )
    return native


# -- the keywords of a call


def split_inputs(
    signature: type[Signature],
    inputs: Mapping[str, Any],
    option_names: Iterable[str],
    toolbox: Toolbox,
) -> Generator[Act, Any, tuple[dict[str, Any], dict[str, Any], Toolbox]]:
    """Split a call's keywords: the program's options, the checked inputs, and the call's tools.

    The tools are those of `toolbox` and those that inputs declare. An input field takes precedence
    over an option of the same name. Values made by an input's factory (an id, a time) are recorded.
    """
    plan = compiled(signature)
    values = dict(inputs)
    options: dict[str, Any] = {}
    for name in option_names:
        if name in values and name not in plan.inputs:
            options[name] = values.pop(name)
    if tool_inputs(signature):
        values, toolbox = declare_tools(signature, values, toolbox)
    if plan.factories:
        made = yield Once(partial(plan.generate_defaults, values), _MADE_INPUTS, only_if_true=True)
        if made:
            values = {**plan.read_generated(made), **values}
    return options, plan.check_inputs(signature.__name__, values), toolbox


def check_inputs_of_call(
    signature: type[Signature], inputs: Mapping[str, Any], option_names: Iterable[str]
) -> None:
    """Raise `InputError` for inputs that do not fit the signature, before a run begins.

    Inputs that declare tools are only checked in the run.
    """
    if tool_inputs(signature):
        return
    plan = compiled(signature)
    options = set(option_names) - plan.inputs.keys()
    values = {name: value for name, value in inputs.items() if name not in options}
    plan.refuse_inputs(signature.__name__, values)


def check_positive(name: str, value: int) -> int:
    """Check an option such as `max_iters`: a whole number of at least 1."""
    if not isinstance(cast("Any", value), int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"`{name}` must be a whole number of at least 1, found {value!r}.")
    return value


def list_demos(demos: Any, error: type[FerruleError]) -> list[Any]:
    """The demos as a new list, empty for None; raises `error` for anything but an iterable.

    The adapter checks each demo.
    """
    if demos is None:
        return []
    is_single = hasattr(demos, "keys")  # a mapping, or one of DSPy's examples
    if is_single or isinstance(demos, (str, bytes)) or not isinstance(demos, Iterable):
        hint = ""
        if is_single:
            hint = " Write `[...]` around a single one."
        raise error(f"`demos` takes a list of mappings of fields, found {shown(demos)}.{hint}")
    return list(cast("Iterable[Any]", demos))


def config_of_call(config: Any) -> Mapping[str, Any]:
    """The settings of one call, empty for None; raises `InputError` for anything but a mapping."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise InputError(
            "`config` takes a mapping of settings by name, such as `{'temperature': 0}`; "
            f"found {shown(config)}."
        )
    return cast("Mapping[str, Any]", config)
