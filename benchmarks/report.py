"""The table of `make bench`: prints rows as they arrive, checks the limits that a run should keep, and draws the picture."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from html import escape

from libraries import FLOOR, OURS


@dataclass(frozen=True)
class Row:
    figure: str
    library: str
    unit: str
    value: float | None
    """The lowest value of the rounds; None if there is none, and `note` says why."""
    to_ours: float | None = None
    """The ratio to ferrule's value, as the median over the rounds."""
    to_floor: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Limit:
    """A limit that a run should keep: on a figure of ferrule, by itself or as a ratio to another row of the same run."""

    name: str
    at_most: float
    figure: str
    library: str
    beside: tuple[str, str] | None = None
    """The figure and library of the row that the value is divided by."""


FIRST = "first run, beside the import of pydantic"
KEPT = "kept runs of ten steps, 200 at once"
LOADED = "load, read, list"

# Ratios within one run, with room for noise: a row that exceeds its limit has become slower. The
# floor makes them machine-independent.
LIMITS = [
    Limit(
        "a step, native, 10 steps: times the floor",
        12,
        "step of 10, sync",
        OURS,
        ("step of 10, sync", FLOOR),
    ),
    Limit(
        "a step, native, 100 steps: times the floor",
        11,
        "step of 100, sync",
        OURS,
        ("step of 100, sync", FLOOR),
    ),
    Limit(
        "a step, native, 1,000 steps: times the floor",
        11,
        "step of 1000, sync",
        OURS,
        ("step of 1000, sync", FLOOR),
    ),
    Limit(
        "a step of 1,000: times a step of 100",
        1.2,
        "step of 1000, sync",
        OURS,
        ("step of 100, sync", OURS),
    ),
    Limit("import: times pydantic's", 1.5, "import", OURS, ("import", FLOOR)),
    Limit("first finished run: times pydantic's import", 1.6, FIRST, OURS, (FIRST, FLOOR)),
    Limit(
        "a request of 200 agents: times the floor",
        1.8,
        "HTTP, 200 agents",
        OURS,
        ("HTTP, 200 agents", FLOOR),
    ),
    Limit("memory, KB an agent", 60, "memory an agent of 10 steps", OURS),
    Limit("8 calls of 100 ms, ms", 130, "8 calls at once, sync", OURS),
    Limit("8 calls of 100 ms, async, ms", 130, "8 calls at once, async", OURS),
    Limit(
        "a journal entry: times a bare commit",
        1.3,
        "a journal entry",
        "kept",
        ("a journal entry", FLOOR),
    ),
    Limit(
        "a journal entry, async: times a bare commit",
        1.3,
        "a journal entry",
        "kept, async",
        ("a journal entry", FLOOR),
    ),
    Limit(
        "a kept run of 200 at once: times one by itself",
        0.2,
        KEPT,
        "async, at once",
        (KEPT, "async, one at a time"),
    ),
    Limit(
        "a loaded step of 100: times one of 10",
        1.3,
        "a loaded run of 100, a step",
        LOADED,
        ("a loaded run of 10, a step", LOADED),
    ),
    Limit(
        "a loaded step of 1,000: times one of 100",
        1.3,
        "a loaded run of 1000, a step",
        LOADED,
        ("a loaded run of 100, a step", LOADED),
    ),
    Limit(
        "a loaded step of 4,000: times one of 100",
        1.3,
        "a loaded run of 4000, a step",
        LOADED,
        ("a loaded run of 100, a step", LOADED),
    ),
]


class Table:
    """The rows, in the order in which they were measured."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def header(self) -> str:
        """The line above the rows."""
        return f"\n{'figure':42} {'library':24} {'value':>10} {'unit':14} {'x ferrule':>9} {'x floor':>9}"

    def add(
        self,
        figure: str,
        unit: str,
        samples: dict[str, list[float]],
        notes: dict[str, str] | None = None,
    ) -> None:
        """Print and keep a row for each library. Samples of the same round have the same position in their lists."""
        for library, found in samples.items():
            ours, floor = samples.get(OURS), samples.get(FLOOR)
            best = min(found) if unit != "requests/s" else max(found)
            self._row(Row(figure, library, unit, best, _ratio(found, ours), _ratio(found, floor)))
        for library, note in (notes or {}).items():
            self._row(Row(figure, library, unit, None, note=note))

    def one(
        self,
        figure: str,
        library: str,
        unit: str,
        value: float,
        *,
        note: str = "",
        **ratios: float,
    ) -> None:
        """Print and keep a row whose ratios, `to_ours` and `to_floor`, are already known or meaningless."""
        self._row(Row(figure, library, unit, value, note=note, **ratios))

    def _row(self, row: Row) -> None:
        self.rows.append(row)
        value = "-" if row.value is None else _number(row.value)
        ratios = " ".join(
            f"{'' if each is None else f'{each:.2f}':>9}" for each in (row.to_ours, row.to_floor)
        )
        print(
            f"{row.figure:42} {row.library:24} {value:>10} {row.unit:14} {ratios}  {row.note}".rstrip(),
            flush=True,
        )

    def value(self, figure: str, library: str) -> float | None:
        """The value of a row; None if it was not measured."""
        return next(
            (row.value for row in self.rows if (row.figure, row.library) == (figure, library)),
            None,
        )

    def print_limits(self) -> list[str]:
        """Print which limits hold; return the names of those that do not. Limits without measured rows are left out."""
        found = [(limit, value) for limit in LIMITS if (value := self._found(limit)) is not None]
        if found:
            print(
                "\nlimits, as ratios within this run where that makes them independent of the machine",
            )
        for limit, value in found:
            print(
                f"{limit.name:48} {_number(value):>9} of at most {limit.at_most:g}: {'holds' if value <= limit.at_most else 'EXCEEDED'}",
            )
        return [limit.name for limit, value in found if value > limit.at_most]

    def _found(self, limit: Limit) -> float | None:
        row = next(
            (
                each
                for each in self.rows
                if (each.figure, each.library) == (limit.figure, limit.library)
            ),
            None,
        )
        if row is None or limit.beside is None:
            return row and row.value
        if limit.beside == (limit.figure, FLOOR):
            return row.to_floor
        beside = self.value(*limit.beside)
        return None if beside is None or row.value is None else row.value / beside

    def as_json(self) -> list[dict]:
        """The rows as JSON objects."""
        return [asdict(row) for row in self.rows]


def _ratio(found: list[float], base: list[float] | None) -> float | None:
    if not base or base is found:
        return None
    ratios = [one / other for one, other in zip(found, base, strict=False) if other]
    return statistics.median(ratios) if ratios else None


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


SUMMARY = {
    "step of 100, sync": "a step of a run of 100 steps, scripted model",
    "HTTP, 200 agents": "one model request over HTTP, with 200 agents at once",
    "import": "the import",
}


def summary(table: Table, about: str) -> str:
    """The README's section on speed, which states only what this run measured."""
    names = dict.fromkeys(
        row.library
        for row in table.rows
        if row.figure in SUMMARY and row.to_ours and row.library != FLOOR
    )
    others = [name for name in names if not name.startswith(OURS)]
    lines = [
        f"`make bench` runs the same agent with other libraries. CPU time; `x` is a multiple of ferrule's. Measured on {about}.",
        "![Bars: CPU and memory of ferrule beside other libraries](docs/images/speed.svg)",
        "",
        f"| CPU of | {OURS} | " + " | ".join(others) + " |",
        "|---|" + "---|" * (1 + len(others)),
    ]
    for figure, title in SUMMARY.items():
        rows = {row.library: row for row in table.rows if row.figure == figure}
        ratios = (
            f"{_number(rows[name].to_ours)} x" if name in rows and rows[name].to_ours else "-"
            for name in others
        )
        lines.append(
            f"| {title} | {_number(rows[OURS].value)} {rows[OURS].unit.split()[0]} | "
            + " | ".join(ratios)
            + " |",
        )
    return "\n".join(lines)


PANELS = [
    ("step of 100, sync", "CPU of a step in process, 100 steps, in microseconds"),
    ("HTTP, 200 agents", "CPU of a request, 200 agents at once over HTTP, in microseconds"),
    ("import", "CPU of the import, in milliseconds"),
    ("memory an agent of 10 steps", "memory of an agent after 10 steps, in KB"),
]
WIDTH, LINE, LEFT, RIGHT = 720, 20, 160, 90


def picture(table: Table, about: str) -> str:
    """Bars on logarithmic scales, as SVG without fonts, scripts or colours that a viewer may lack."""
    parts, top = [], 24
    for figure, title in PANELS:
        rows = sorted(
            (row for row in table.rows if row.figure == figure and row.value),
            key=lambda row: row.value,
        )
        if not rows:
            continue
        parts.append(f'<text x="8" y="{top}" font-weight="bold">{escape(title)}</text>')
        top += 8
        low, high = math.log(rows[0].value / 2), math.log(rows[-1].value)
        for row in rows:
            width = (WIDTH - LEFT - RIGHT) * (math.log(row.value) - low) / (high - low)
            colour = "#b4531f" if row.library.startswith(OURS) else "#9aa5b1"
            ratio = f" ({row.to_ours:.1f} x)" if row.to_ours and row.library != FLOOR else ""
            parts.append(
                f'<text x="{LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(row.library)}</text>',
            )
            parts.append(
                f'<rect x="{LEFT}" y="{top + 3}" width="{width:.1f}" height="{LINE - 6}" fill="{colour}"/>',
            )
            parts.append(
                f'<text x="{LEFT + width + 6:.1f}" y="{top + 14}">{_number(row.value)}{ratio}</text>',
            )
            top += LINE
        top += 30
    parts.append(
        f'<text x="8" y="{top}" fill="#59636e">Logarithmic scales; x: times ferrule. {escape(about)}.</text>',
    )
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="#1f2328"'
    body = "\n".join(parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 14}" width="{WIDTH}" role="img" {style}>'
    return f'{head}\n<title>ferrule beside other libraries</title>\n<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
