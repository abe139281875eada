"""`ferrule migrate`: what becomes of a program of another library here."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003
from typing import TYPE_CHECKING, Annotated, Any

import typer

# Typer reads annotations at run time.
from ferrule.cli.commands.tools import JSON  # noqa: TC001
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.migrate.check import check_repository, used_names
from ferrule.cli.migrate.names import FACADES, LIBRARIES, names_of
from ferrule.cli.screen import print_json, write_text
from ferrule.encoding.safe_text import one_line, reveal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.cli.migrate.check import Checked, Use
    from ferrule.cli.migrate.names import Library

migrate_app = typer.Typer(
    help="See what becomes of a program of DSPy or udspy here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_MOST_PLACES = 3


@migrate_app.command("check")
def check(
    path: Annotated[Path, typer.Argument(help="A file, or a folder with Python files.")],
    as_json: JSON = False,
) -> int:
    """Say which names of DSPy and udspy work here, which differ and how, and which are missing.

    Nothing is imported or run: files are only parsed.
    """
    checked = check_repository(path)
    if as_json:
        print_json(_document(checked))
    else:
        write_text("\n".join(_lines(checked)))
    if checked.unread or any(use.name.status == "missing" for use in checked.uses):
        return ExitCode.FAILED
    return ExitCode.DONE


def _lines(checked: Checked) -> Iterator[str]:
    names = used_names(checked.uses)
    if not names:
        yield "No file imports dspy or udspy."
    for library in _libraries(checked):
        yield from _library_lines(
            library, [uses for key, uses in names.items() if key[0] == library]
        )
    if checked.unread:
        yield "Could not be read:"
        for file, problem in checked.unread.items():
            yield f"  {_safe(file)}: {_safe(problem)}"


def _libraries(checked: Checked) -> list[Library]:
    """The libraries that the files use."""
    used = {use.library for use in checked.uses}
    return [library for library in LIBRARIES if library in used]


def _library_lines(library: Library, names: list[list[Use]]) -> Iterator[str]:
    by_status: dict[str, list[list[Use]]] = {"missing": [], "differs": [], "works": []}
    for uses in names:
        by_status[uses[0].name.status].append(uses)
    files = len({use.file for uses in names for use in uses})
    missing, differs, works = (len(by_status[status]) for status in by_status)
    yield (
        f"{library}: {len(names)} names in {files} files: "
        f"{works} work, {differs} differ, {missing} are missing."
    )
    for status, heading in (("missing", "Missing:"), ("differs", "Differ:")):
        if by_status[status]:
            yield heading
        for uses in by_status[status]:
            yield f"  {_safe(uses[0].name.name)} ({_places(uses)})"
            yield f"    {_advice(uses[0])}"
    if by_status["works"]:
        yield f"Work: {', '.join(_safe(uses[0].name.name) for uses in by_status['works'])}"
    general = names_of(library).general
    yield (
        f"{len(general)} differences concern programs of any kind: "
        f'docs/coming-from/differences.md, "{FACADES[library]}".'
    )
    yield f"The import to change: import ferrule.compat.{library} as {library}"


def _advice(use: Use) -> str:
    name = use.name
    if name.status == "missing" and name.core:
        return f"instead: {name.core}. {name.note}".rstrip()
    return name.note


def _places(uses: list[Use]) -> str:
    places = list(dict.fromkeys(f"{_safe(use.file)}:{use.line}" for use in uses))
    text = ", ".join(places[:_MOST_PLACES])
    if len(places) > _MOST_PLACES:
        text += f" and {len(places) - _MOST_PLACES} more"
    return text


def _safe(text: str) -> str:
    return one_line(reveal(text))


def _document(checked: Checked) -> dict[str, Any]:
    names = used_names(checked.uses)
    return {
        "files": checked.files,
        "names": [
            {
                "library": library,
                "name": name,
                "status": uses[0].name.status,
                "core": uses[0].name.core or None,
                "note": uses[0].name.note,
                "places": [{"file": use.file, "line": use.line} for use in uses],
            }
            for (library, name), uses in names.items()
        ],
        "differences": {
            library: list(names_of(library).general) for library in _libraries(checked)
        },
        "unread": checked.unread,
    }
