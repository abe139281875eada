"""A person's edit of a call's arguments.

Edited arguments are checked. Checking a value twice may change it (a validator that doubles, a
serialiser that rounds), so the other arguments are checked as the model gave them, and run as the
person saw them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import field

from ferrule.encoding.encode import is_masked
from ferrule.record import PartlyCompared
from ferrule.schema.nodes import is_list, is_object
from ferrule.values.calls.call import CheckedArguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
    prepare: Callable[[dict[str, Any]], CheckedArguments],
) -> CheckedArguments:
    """Return the arguments with these changes, checked by the tool's `prepare`. Raises `ToolArgumentsError` for invalid values."""
    given, before = _origin(arguments)
    names = (arguments.names if isinstance(arguments, Coerced) else None) or {}
    own = {name: names.get(name, name) for name in changes}
    # Stars are not the value of a secret: one that comes back as stars, as it was shown, is
    # unchanged.
    changes = {
        name: each
        for name, each in changes.items()
        if each != arguments.shown.get(own[name]) or not is_masked(each)
    }
    changes = {
        name: _unmasked(each, arguments.shown.get(own[name]), given.get(own[name]))
        for name, each in changes.items()
    }
    renamed = {own[name] for name in changes}.difference(
        changes,
    )  # edited under their aliases, as a schema shows them
    given = (
        {name: value for name, value in given.items() if name not in renamed} if renamed else given
    )
    found = prepare({**given, **changes})
    found_given, after = _origin(found)
    # A new name was edited under its alias.
    kept = {
        name
        for name in before
        if name not in changes and name in after and (name in given or name not in found_given)
    }
    values = {name: before[name] if name in kept else value for name, value in after.items()}
    shown = {
        name: arguments.shown[name] if name in kept and name in arguments.shown else value
        for name, value in found.shown.items()
    }
    by_place = [name for name in after if name not in found.named]
    fixed = len(found.positional) - len(by_place)  # a caller comes before the model's arguments
    positional = (*found.positional[:fixed], *(values[name] for name in by_place))
    return Coerced(
        positional,
        {name: values[name] for name in found.named},
        shown,
        found.repairs,
        found_given,
        values,
        names or None,
    )


def _unmasked(new: Any, shown: Any, given: Any) -> Any:
    """The new value, in which the given secrets replace the stars that it repeats."""
    if isinstance(new, str):
        return given if new == shown and is_masked(new) else new
    if is_object(new) and is_object(shown) and is_object(given):
        return {
            name: _unmasked(each, shown.get(name), given[name]) if name in given else each
            for name, each in new.items()
        }
    if is_list(new) and is_list(shown) and is_list(given) and len(new) == len(shown) == len(given):
        return [_unmasked(*each) for each in zip(new, shown, given, strict=True)]
    return new


def made_anew(
    arguments: CheckedArguments,
    args: dict[str, Any],
    prepare: Callable[[dict[str, Any]], CheckedArguments],
) -> dict[str, Any]:
    """The shown arguments that every check of the call makes anew: defaults of a factory, such as an id or a time."""
    again = prepare(args).shown
    return {name: value for name, value in arguments.shown.items() if again.get(name) != value}


def _origin(arguments: CheckedArguments) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        (arguments.given, arguments.values)
        if isinstance(arguments, Coerced)
        else (arguments.shown, arguments.named)
    )
