"""What a program is called with, besides its inputs: a model, settings, demos, tools that inputs declare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ferrule.adapters.render import tool_inputs
from ferrule.errors import ConfigurationError, InputError, shown

if TYPE_CHECKING:
    from ferrule.errors import FerruleError
    from ferrule.tools.toolbox import Toolbox
    from ferrule.values.signatures.signature import Signature


def split_inputs(
    signature: type[Signature], inputs: Mapping[str, Any], own: Iterable[str], toolbox: Toolbox
) -> tuple[dict[str, Any], Mapping[str, Any], Toolbox]:
    """A call's keywords as the program's own, the inputs, and the tools of this call: `toolbox` and those that inputs declare.

    An input field wins over a keyword of its name.
    """
    kept = {name: inputs[name] for name in own if name in inputs and name not in signature.input_fields}
    given = {name: value for name, value in inputs.items() if name not in kept}
    if tool_inputs(signature):
        from ferrule.programs.tool_use.inputs import declare_tools  # late: few signatures declare tools

        given, toolbox = declare_tools(signature, given, toolbox)
    return kept, given, toolbox


def check_positive(name: str, value: int) -> int:
    """The most turns or steps of a run; raises `ConfigurationError` for anything but a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
        raise ConfigurationError(f"`{name}` must be a whole number of at least 1, found {value!r}.")
    return value


def list_demos(demos: Any, error: type[FerruleError]) -> list[Any]:
    """The demos as a new list, empty for None; raises `error` for anything but an iterable. The adapter checks each demo."""
    if demos is None:
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
        raise InputError(f"`config` takes a mapping of settings by name, such as `{{'temperature': 0}}`; found {shown(config)}.")
    return cast("Mapping[str, Any]", config)
