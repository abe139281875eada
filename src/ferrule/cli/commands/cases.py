"""`ferrule cases`: stored runs as cases, and held against cases."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

# Typer reads annotations at run time.
from ferrule.cli.commands.tools import JSON  # noqa: TC001
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.screen import print_json, say, write_text
from ferrule.cli.stores import DEFAULT_STORE, STORE_VARIABLE, open_store
from ferrule.encoding.safe_text import one_line, reveal
from ferrule.runs.cases.case import cases_of, cases_text, grade, read_cases
from ferrule.runs.cases.export import to_inspect, to_pydantic_evals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.runs.cases.case import Grades

_FORMATS = {"ferrule": cases_text, "pydantic-evals": to_pydantic_evals, "inspect": to_inspect}


def make_cases(
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            envvar=STORE_VARIABLE,
            show_envvar=True,
            help="The SQLite file with the runs, or postgresql://...",
        ),
    ] = DEFAULT_STORE,
    grade_with: Annotated[
        Path | None,
        typer.Option("--grade", metavar="FILE", help="Hold the runs against the cases in a file."),
    ] = None,
    program: Annotated[
        str | None, typer.Option(help="Only the runs of the program with this name.")
    ] = None,
    with_outputs: Annotated[
        bool, typer.Option("--outputs", help="Also expect the outputs of the runs.")
    ] = False,
    written_as: Annotated[
        Literal["ferrule", "pydantic-evals", "inspect"],
        typer.Option("--format", help="The form of the cases."),
    ] = "ferrule",
    as_json: JSON = False,
) -> int:
    """Print the finished runs of a store as cases: their inputs, and the calls that they made.

    With --grade, hold them against the cases of a file instead. No model is asked.
    """
    with open_store(store) as opened:
        if grade_with is None:
            cases = cases_of(opened, program=program, with_outputs=with_outputs)
            write_text(_FORMATS[written_as](cases).rstrip("\n"))
            if not cases:
                say("Note: the store has no finished run.")
            return ExitCode.DONE
        grades = grade(opened, read_cases(grade_with), program=program)
    if as_json:
        print_json(_document(grades))
    else:
        write_text("\n".join(_lines(grades)))
    if grades.failed or grades.without_run or grades.unread:
        return ExitCode.FAILED
    return ExitCode.DONE


def _lines(grades: Grades) -> Iterator[str]:
    for graded in grades.failed:
        yield f"{graded.run_id}: {_safe(graded.case.name)}"
        for line in graded.judgement.feedback.splitlines():
            yield f"  {reveal(line)}"
    for case in grades.without_run:
        yield f"no run: {_safe(case.name or str(dict(case.inputs)))}"
    for run_id, problem in grades.unread.items():
        yield f"{run_id}: cannot be read: {_safe(problem)}"
    met = len(grades.runs) - len(grades.failed)
    summary = f"{met} of {len(grades.runs)} runs are as expected"
    if grades.without_run:
        summary += f"; {len(grades.without_run)} cases have no run"
    if grades.without_case:
        summary += f"; {grades.without_case} runs have no case"
    if grades.unread:
        summary += f"; {len(grades.unread)} runs cannot be read"
    yield summary


def _safe(text: str) -> str:
    return one_line(reveal(text))


def _document(grades: Grades) -> dict[str, Any]:
    return {
        "runs": [
            {
                "run": graded.run_id,
                "case": graded.case.name,
                "met": graded.judgement.score,
                "feedback": graded.judgement.feedback,
            }
            for graded in grades.runs
        ],
        "without_run": [
            {"case": case.name, "inputs": dict(case.inputs)} for case in grades.without_run
        ],
        "without_case": grades.without_case,
        "unread": grades.unread,
    }
