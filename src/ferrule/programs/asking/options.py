"""What programs are given beside their inputs, when made and when called: told from the inputs, and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ConfigurationError, InputError, shown

if TYPE_CHECKING:
    from ferrule.errors import FerruleError
    from ferrule.values.signatures.signature import Signature

_NO_CONFIG: Mapping[str, Any] = {}


def split(signature: type[Signature], inputs: Mapping[str, Any], own: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call's keywords: those that are the program's own, and the inputs. An input field wins over a keyword of its name."""
    mine = {name for name in own if name in inputs and name not in signature.input_fields}
    if not mine:
        return {}, dict(inputs)
    return {name: inputs[name] for name in mine}, {name: value for name, value in inputs.items() if name not in mine}


def at_least_one(name: str, value: int) -> int:
    """The most turns or steps of a run; raises `ConfigurationError` for what is no such number."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
        msg = f"`{name}` must be a whole number of at least 1, found {value!r}."
        raise ConfigurationError(msg)
    return value


def listed_demos(given: Any, error: type[FerruleError]) -> list[Any]:
    """The demos as a list of its own, None being none; raises `error` for what is no list. Each is looked at where it is shown."""
    if given is None:
        return []
    is_one = hasattr(given, "keys")  # a mapping, or one of DSPy's examples
    if is_one or isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        msg = f"`demos` takes a list of mappings of fields, found {shown(given)}.{' Write `[...]` around a single one.' if is_one else ''}"
        raise error(msg)
    return list(cast("Iterable[Any]", given))


def config_of_call(given: Any) -> Mapping[str, Any]:
    """The settings of one call, None being none; raises `InputError` for what is no mapping."""
    if given is None:
        return _NO_CONFIG
    if not isinstance(given, Mapping):
        msg = f"`config` takes a mapping of settings by name, such as `{{'temperature': 0}}`; found {shown(given)}."
        raise InputError(msg)
    return cast("Mapping[str, Any]", given)
