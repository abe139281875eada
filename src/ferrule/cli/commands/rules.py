"""`ferrule rules`: policies held against the calls and the decisions that a store recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferrule.approval.policy import Policy
from ferrule.cli.arguments import find_attribute

# Typer reads annotations at run time.
from ferrule.cli.commands.tools import JSON  # noqa: TC001
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.screen import print_json, write_text
from ferrule.cli.stores import DEFAULT_STORE, STORE_VARIABLE, open_store
from ferrule.encoding.encode import json_text
from ferrule.encoding.safe_text import one_line, reveal
from ferrule.errors import ConfigurationError, shown
from ferrule.runs.rules_in_retrospect import judge_calls, propose_rules, recorded_calls

if TYPE_CHECKING:
    from ferrule.runs.rules_in_retrospect import JudgedCalls, RecordedCall

rules_app = typer.Typer(
    help="Hold rules against the calls and the decisions that a store recorded.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_Place = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        envvar=STORE_VARIABLE,
        show_envvar=True,
        help="The SQLite file with the runs, or postgresql://...",
    ),
]
_VERDICTS = ("allow", "ask", "deny", "own")
_SAID = ("approved", "edited", "denied", "answered", "nobody")
_MOST_CHARS = 120


@rules_app.command("replay")
def replay_rules(
    policy: Annotated[
        str, typer.Option(help="The policy: module:attribute, or file.py:attribute.")
    ],
    store: _Place = DEFAULT_STORE,
    as_json: JSON = False,
) -> int:
    """Run a policy over the recorded calls: its verdicts beside what people decided.

    Nothing is called. `own` are calls without a rule, left to their tool.
    """
    rules = find_attribute(policy, "policy")
    if not isinstance(rules, Policy):
        raise ConfigurationError(f"{policy!r} is not a policy: found {shown(rules)}.")
    judged = judge_calls(rules, _read(store))
    if as_json:
        return print_json(_document(judged))
    write_text("\n".join(_lines(judged)))
    return ExitCode.DONE


@rules_app.command("propose")
def propose(
    store: _Place = DEFAULT_STORE,
    least: Annotated[
        int, typer.Option(min=1, help="The fewest approvals for which a rule is proposed.")
    ] = 5,
) -> int:
    """Print rules that agree with all decisions of people, to read and to paste into a policy."""
    proposals = propose_rules(_read(store), least=least)
    for proposal in proposals:
        write_text(
            f"{_safe(str(proposal.rule))},  # people approved {proposal.approved} such calls "
            f"and refused none"
        )
    if not proposals:
        write_text(f"No rule agrees with {least} or more approvals of one tool and no refusal.")
    return ExitCode.DONE


def _read(place: str) -> list[RecordedCall]:
    with open_store(place) as store:
        run_ids = [summary.id for summary in store.list(limit=None)]
        return list(recorded_calls(store, reversed(run_ids)))


def _lines(judged: JudgedCalls) -> list[str]:
    if not judged.tools:
        return ["The store has no calls."]
    heading = ["tool", *_VERDICTS, "|", *_SAID]
    rows = [heading]
    for name, tally in sorted(judged.tools.items()):
        verdicts = [str(tally.verdicts[verdict]) for verdict in _VERDICTS]
        rows.append([_safe(name), *verdicts, "|", *[str(tally.said[word]) for word in _SAID]])
    widths = [max(len(row[column]) for row in rows) for column in range(len(heading))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    for recorded, verdict in judged.differing:
        call = _safe(f"{recorded.call.name} {json_text(recorded.call.args)}")
        lines.append(f"{recorded.run_id}: {verdict}, but a person {recorded.said} it: {call}")
    if judged.in_doubt:
        lines.append(
            f"{judged.in_doubt} calls meet a rule with a function or a reviewer, which are not "
            "asked here: an `ask` or a `deny` counts, an `allow` does not."
        )
    return lines


def _safe(text: str) -> str:
    """Text of a store for the terminal, in one line."""
    safe = one_line(reveal(text))
    if len(safe) <= _MOST_CHARS:
        return safe
    return f"{safe[:_MOST_CHARS]}..."


def _document(judged: JudgedCalls) -> dict[str, Any]:
    return {
        "tools": {
            name: {"verdicts": dict(tally.verdicts), "said": dict(tally.said)}
            for name, tally in judged.tools.items()
        },
        "differing": [
            {
                "run": recorded.run_id,
                "call": recorded.call.name,
                "args": recorded.call.args,
                "verdict": verdict,
                "said": recorded.said,
            }
            for recorded, verdict in judged.differing
        ],
        "in_doubt": judged.in_doubt,
    }
