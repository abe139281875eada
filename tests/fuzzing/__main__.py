"""`python -m fuzzing`: random inputs, of which nothing but ferrule's own errors may come;
`--doubling`: time by size, up to 1 MB.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from contextlib import suppress
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from ferrule import FerruleError
from fuzzing.doors import SCHEMAS, TEXTS
from fuzzing.inputs import FRAGMENTS, OPENINGS, schema, text, value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLAIN = frozenset({"read_json", "a history"})
"""Those that raise a plain `ValueError`, which is theirs."""
SIZES = tuple(1_000 * 2**doubling for doubling in range(11))
"""From 1 KB to 1 MB."""
FIRST_SIZES = (1_000, 4_000, 16_000, 64_000)
"""Those at which each text is read. Only one that looks slow is read at all sizes."""
LONGEST_S = 2.0
"""A text that takes longer is not read at a larger size."""
WORST = 2.3
"""How much longer twice as much may take."""
TELLING_S = 0.005
"""Shorter than this is not compared."""


def main() -> int:
    """Print what was found; returns whether that was anything."""
    parser = argparse.ArgumentParser(prog="fuzzing", description=__doc__)
    parser.add_argument(
        "--doubling",
        action="store_true",
        help="time each text at doubling sizes, instead of inputs by chance",
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="how long")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(1 << 30),
        help="where chance begins",
    )
    parser.add_argument("--only", default="", help="only doors whose name contains this")
    told = parser.parse_args()
    warnings.simplefilter("ignore")
    chance, until = random.Random(told.seed), time.monotonic() + told.seconds
    counts, faults = Counter[str](), 0
    for fault in (slow if told.doubling else raw)(chance, until, told.only, counts):
        faults += 1
        sys.stdout.write(f"{fault}\n")
    sys.stdout.write(f"seed {told.seed}: {counts.total()} inputs, {faults} faults\n")
    return int(faults > 0)


def raw(chance: random.Random, until: float, only: str, counts: Counter[str]) -> Iterator[str]:
    """Errors that are not ferrule's: from inputs by chance."""
    while time.monotonic() < until:
        for name, read in TEXTS.items():
            if only in name:
                given: Any = text(chance)
                counts[name] += 1
                yield from _raised(name, lambda given=given, read=read: read(given), given)
        for name, use in SCHEMAS.items():
            if only in name:
                given = schema(chance), value(chance)
                counts[name] += 1
                yield from _raised(name, lambda given=given, use=use: use(*given), given)


def _raised(name: str, act: Callable[[], Any], given: Any) -> Iterator[str]:
    try:
        with suppress(FerruleError):
            act()
    except Exception as error:
        if isinstance(error, ValueError) and name in PLAIN:
            return
        yield f"{name}: {type(error).__name__}: {str(error)[:200]} of {given!r}"[:2_000]


def slow(chance: random.Random, until: float, only: str, counts: Counter[str]) -> Iterator[str]:
    """Texts that take more than twice as long at twice the size, at least two times."""
    forms = [(opening, fragment) for opening in OPENINGS for fragment in FRAGMENTS]
    forms += [("", first + second) for first, second in product(FRAGMENTS, repeat=2)]
    chance.shuffle(forms)
    for opening, fragment in forms:
        for name, read in TEXTS.items():
            if only not in name or time.monotonic() > until:
                continue
            counts[name] += 1
            first = [_span_s(read, opening, fragment, size) for size in FIRST_SIZES]
            if not any(_is_steep(before, after, WORST**2) for before, after in pairwise(first)):
                continue
            spans = _spans_s(read, opening, fragment)
            steep = [_is_steep(before, after, WORST) for before, after in pairwise(spans)]
            # Twice in a row: how a text is cut to its size can make a single step.
            if any(map(all, pairwise(steep))):
                shown = ", ".join(f"{span:.3f}" for span in spans)
                yield f"{name}: {opening + fragment!r} from 1 KB, doubling, takes {shown} s"


def _is_steep(before: float, after: float, most: float) -> bool:
    return after >= TELLING_S and after > before * most


def _spans_s(read: Callable[[str], Any], opening: str, fragment: str) -> list[float]:
    """The times at all sizes, each the best of three.

    A busy machine and the garbage collector slow single readings.
    """
    spans: list[float] = []
    for size in SIZES:
        spans.append(min(_span_s(read, opening, fragment, size) for _ in range(3)))
        if spans[-1] > LONGEST_S:
            break
    return spans


def _span_s(read: Callable[[str], Any], opening: str, fragment: str, size: int) -> float:
    given = (opening + fragment * (size // len(fragment) + 1))[:size]
    began = time.thread_time()
    with suppress(FerruleError, ValueError, RecursionError):
        read(given)
    return time.thread_time() - began


if __name__ == "__main__":
    sys.exit(main())
