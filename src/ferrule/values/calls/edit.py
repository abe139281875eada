"""A person's edit of a call.

In: the arguments that the person saw, and others for some of them. Out: arguments to run with, the others checked. To check a value twice
may change it (a validator that doubles, a serialiser that rounds), so that what nobody edited is checked again only as it was given, and
runs as it was shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.values.calls.call import CheckedArguments
from ferrule.values.encoding.encode import is_masked
from ferrule.values.record import field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Coerced(CheckedArguments):
    """Arguments that are not simply what is shown."""

    given: dict[str, Any] = field(default_factory=dict[str, Any], compare=False, repr=False)
    """What came, mended, by parameter name."""
    values: dict[str, Any] = field(default_factory=dict[str, Any], compare=False, repr=False)
    """What became of it, by parameter name, also of those that Python takes by position only."""

    @property
    def secrets(self) -> dict[str, Any]:
        """As for any arguments, those by position only among them."""
        return {name: value for name, value in self.values.items() if name in self.shown and is_masked(self.shown[name])}


def edited(
    arguments: CheckedArguments, changes: Mapping[str, Any], prepare: Callable[[dict[str, Any]], CheckedArguments]
) -> CheckedArguments:
    """The arguments with these changed; raises what `prepare`, the tool's own, raises for values that do not fit."""
    given, before = _origin(arguments)
    found = prepare({**given, **changes})
    found_given, after = _origin(found)
    # A name that is new was edited too, under its alias.
    kept = {name for name in before if name not in changes and name in after and (name in given or name not in found_given)}
    values = {name: before[name] if name in kept else value for name, value in after.items()}
    shown = {name: arguments.shown[name] if name in kept and name in arguments.shown else value for name, value in found.shown.items()}
    by_place = [name for name in after if name not in found.named]
    fixed = len(found.positional) - len(by_place)  # the place of a caller, before those of the model
    positional = (*found.positional[:fixed], *(values[name] for name in by_place))
    return Coerced(positional, {name: values[name] for name in found.named}, shown, found.repairs, found_given, values)


def _origin(arguments: CheckedArguments) -> tuple[dict[str, Any], dict[str, Any]]:
    return (arguments.given, arguments.values) if isinstance(arguments, Coerced) else (arguments.shown, arguments.named)
