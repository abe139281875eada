"""A person's edit of a call's arguments.

Edited arguments are checked. Checking a value twice may change it (a validator that doubles, a
serialiser that rounds), so the other arguments are checked as the model gave them, and run as the
person saw them.

A person sees stars in place of a secret, and sends them back with what was changed. Stars stand for
the secret of the place where they were shown. The items of a list have no such place once one was
moved or left out: there, an item that comes back as it was shown keeps its secret, wherever it is
now. No secret ever becomes the stars themselves: an edit in which they stand for nothing is
refused, and the person is asked again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

from msgspec import field
from pydantic import BaseModel

from ferrule.encoding.encode import is_masked, json_text
from ferrule.errors import ToolArgumentsError
from ferrule.record import PartlyCompared
from ferrule.schema.nodes import is_list, is_object
from ferrule.values.calls.call import CheckedArguments
from ferrule.values.calls.secrets import STARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ferrule.values.calls.call import ToolSpec


_MEANINGLESS = (
    "the stars do not say which secret they stand for. Write the secret itself, or leave the "
    "argument as it was shown"
)


class Coerced(PartlyCompared, CheckedArguments):
    """Arguments whose values differ from their JSON form."""

    _not_compared = _not_shown = frozenset({"given", "values", "names"})

    given: dict[str, Any] = field(default_factory=dict[str, Any])
    """The given arguments, repaired, by parameter name."""
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    """The coerced values by parameter name, positional-only ones too."""
    names: Mapping[str, str] | None = None
    """Each name that a call may use, with its parameter; None if there are no aliases."""

    @property
    def secrets(self) -> dict[str, Any]:
        """As `CheckedArguments.secrets`, with positional-only arguments."""
        return {
            name: value
            for name, value in self.values.items()
            if name in self.shown and is_masked(self.shown[name])
        }


def edit_arguments(
    arguments: CheckedArguments,
    changes: Mapping[str, Any],
    tool: ToolSpec,
    *,
    removed: Iterable[str] = (),
) -> CheckedArguments:
    """Return the arguments with these changes, without those `removed`, checked by the tool.

    If nothing differs from what was shown, they are the same object.

    Raises `ToolArgumentsError` for invalid values, and for stars in place of an unknown secret.
    """
    originals, values_before = _origin(arguments)
    aliases: Mapping[str, str] = {}
    if isinstance(arguments, Coerced) and arguments.names:
        aliases = arguments.names
    parameter_of = {name: aliases.get(name, name) for name in changes}
    left_out = {aliases.get(name, name) for name in removed}
    new_values: dict[str, Any] = {}
    for name, value in changes.items():
        parameter = parameter_of[name]
        shown_before = arguments.shown.get(parameter)
        # A form sends back all arguments. The value of one that comes back as it was shown stays
        # what it is: stars are not a secret, and to check a value again may change it.
        if parameter in arguments.shown and json_text(value) == json_text(shown_before):
            continue
        original = originals.get(parameter)
        if _has_starred_list(value) and not _is_in_order(arguments, parameter, tool):
            original = None
        new_values[name] = _unmasked(value, shown_before, original)
    if not new_values and not left_out:
        return arguments

    # A value edited under its alias, as a schema shows it, replaces the one under its own name.
    replaced = {parameter_of[name] for name in new_values}.difference(new_values)
    originals = {
        name: value for name, value in originals.items() if name not in replaced | left_out
    }
    checked = tool.prepare({**originals, **new_values})
    originals_after, values_after = _origin(checked)
    stars = [
        path
        for name in new_values
        for path in _starred(values_after.get(parameter_of[name]), parameter_of[name])
    ]
    if stars:
        raise ToolArgumentsError(tool.name, [(path, _MEANINGLESS) for path in stars])

    # A name that the check newly lists among the originals was edited under its alias.
    unchanged = {
        name
        for name in values_before
        if name in values_after
        and name not in new_values
        and name not in left_out
        and (name in originals or name not in originals_after)
    }
    values = dict(values_after)
    shown = dict(checked.shown)
    for name in unchanged:
        values[name] = values_before[name]
        if name in shown and name in arguments.shown:
            shown[name] = arguments.shown[name]

    # A caller comes before the model's positional-only arguments, and stays as it is.
    positional_names = [name for name in values_after if name not in checked.named]
    filled_in = len(checked.positional) - len(positional_names)
    positional = [*checked.positional[:filled_in], *(values[name] for name in positional_names)]
    return Coerced(
        tuple(positional),
        {name: values[name] for name in checked.named},
        shown,
        checked.repairs,
        originals_after,
        values,
        aliases or None,
    )


def _has_starred_list(value: Any) -> bool:
    if is_list(value):
        return is_masked(value)
    return is_object(value) and any(map(_has_starred_list, value.values()))


def _is_in_order(arguments: CheckedArguments, name: str, tool: ToolSpec) -> bool:
    """Whether the items of lists in an argument were given in the order in which they are shown.

    A set has no order, and a validator may sort: then the first secret given is not that of the
    first item shown. What was shown, with the given secrets, must make the same value again.
    """
    originals, values = _origin(arguments)
    shown = _unmasked(arguments.shown.get(name), arguments.shown.get(name), originals.get(name))
    try:
        _, values_again = _origin(tool.prepare({**originals, name: shown}))
        return bool(values_again.get(name) == values.get(name))
    except (ToolArgumentsError, ValueError):  # ValueError: arrays, whose comparison has no truth
        return False


def _unmasked(new: Any, shown: Any, original: Any) -> Any:
    """The new value, in which the original secrets replace the stars that it repeats."""
    if isinstance(new, str):
        if new == shown and is_masked(new):
            return original
        return new
    if is_object(new) and is_object(shown) and is_object(original):
        return {
            name: _unmasked(value, shown.get(name), original[name]) if name in original else value
            for name, value in new.items()
        }
    if is_list(new) and is_list(shown) and is_list(original) and len(shown) == len(original):
        return [
            _unmasked(item, *_item_before(new, index, shown, original))
            for index, item in enumerate(new)
        ]
    return new


def _item_before(
    new: list[Any], index: int, shown: list[Any], original: list[Any]
) -> tuple[Any, Any]:
    """The item of which an item of the edited list is a version, as shown and as given.

    None for an item that may be a version of several, or of none.
    """
    item = new[index]
    if not is_masked(item):
        return None, None
    is_as_long = len(new) == len(shown)
    if is_as_long and item == shown[index]:
        return item, original[index]
    equal = [given for before, given in zip(shown, original, strict=True) if before == item]
    if equal and all(given == equal[0] for given in equal):
        return item, equal[0]  # it was moved, or others were left out
    if is_as_long and not equal and shown[index] not in new:
        return shown[index], original[index]  # it was changed where it is
    return None, None


def _starred(value: Any, path: str, *, is_secret: bool = False) -> Iterator[str]:
    """The paths of the secrets in a checked value whose text is the stars."""
    if hasattr(value, "get_secret_value"):
        yield from _starred(value.get_secret_value(), path, is_secret=True)
        return
    if isinstance(value, (str, bytes, bytearray)):
        if is_secret and value in (STARS, STARS.encode()):
            yield path
        return
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        members = cast("Mapping[Any, Any]", value).items()
    elif isinstance(value, BaseModel):
        members = value
    elif is_dataclass(value):
        members = [(each.name, getattr(value, each.name, None)) for each in fields(value)]
    elif isinstance(value, Collection):
        members = enumerate(cast("Collection[Any]", value))
    for name, member in members:
        yield from _starred(member, f"{path}.{name}", is_secret=is_secret)


def made_anew(
    arguments: CheckedArguments,
    args: dict[str, Any],
    prepare: Callable[[dict[str, Any]], CheckedArguments],
) -> dict[str, Any]:
    """The shown arguments that differ in every check of the call.

    They are defaults of a factory, such as an id or a time.
    """
    second = prepare(args).shown
    return {name: value for name, value in arguments.shown.items() if second.get(name) != value}


def _origin(arguments: CheckedArguments) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments as they were given, and their values, by parameter name."""
    if isinstance(arguments, Coerced):
        return arguments.given, arguments.values
    return arguments.shown, arguments.named
