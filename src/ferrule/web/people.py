"""Who may do what on the page: read it, decide on questions, or administer runs.

Each right includes the ones before it. A role is a text, so that the command line and a program
say it in the same way: `read`, `decide`, `decide:Support,Billing` (only questions of runs of these
programs), and `administer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from ferrule.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

Right = Literal["decide", "administer"]
"""What a form needs. Every person may read."""
ROLES = ("read", "decide", "administer")


class PagePerson(Struct, frozen=True, kw_only=True):
    """A person with a link to the page."""

    name: str = ""
    role: str = "administer"
    programs: frozenset[str] = frozenset()
    """The programs whose questions a person with the role `decide` may decide; empty for all."""

    @property
    def decides(self) -> bool:
        """Whether there are questions that this person may decide."""
        return self.role != "read"

    def may(self, right: Right, program: str = "") -> bool:
        """Whether this person may do what needs a right, to a run of this program."""
        if self.role == "administer":
            return True
        if right == "administer" or self.role != "decide":
            return False
        return not self.programs or program in self.programs


def read_people(people: Any) -> dict[str, PagePerson]:
    """Persons by name: from names, each of whom may do everything, or from roles by name.

    Raises `ConfigurationError` for no person, a name that appears twice, or an unknown role.
    """
    if isinstance(people, Mapping):
        roles = cast("Mapping[str, str]", people)
        persons = {name: read_role(name, role) for name, role in roles.items()}
    else:
        names = list(cast("Sequence[str]", people))
        persons = {name: PagePerson(name=name) for name in names}
        if isinstance(people, str) or len(persons) != len(names):
            raise _misfit(people)
    if not persons:
        raise _misfit(people)
    return persons


def read_role(name: str, role: Any) -> PagePerson:
    """A person with a role as a text."""
    word, separator, listed = str(role).partition(":")
    programs = frozenset(text.strip() for text in listed.split(",") if text.strip())
    is_role = isinstance(role, str) and word in ROLES
    if separator and (word != "decide" or not programs):
        is_role = False
    if not is_role:
        raise ConfigurationError(
            f"The role of {name!r} is 'read', 'decide', 'administer', or 'decide:' and the names "
            f"of programs, such as 'decide:Support,Billing'; found {shown(role)}."
        )
    return PagePerson(name=name, role=word, programs=programs)


def _misfit(people: Any) -> ConfigurationError:
    return ConfigurationError(
        "`people` are the names of those who use the page, each once, or their roles by name; "
        f"found {shown(people)}."
    )
