"""How often a search of 1,000 tools finds the right one: by words (BM25), and by embeddings.

    python benchmarks/tool_search.py [--most 200]

The tools are made: 20 actions on 50 things. Each is asked for in four ways: in its own words, with
another verb, with another noun, and with neither. `recall@5` is the part of the queries whose tool
is among the first five. It needs the embedded model.
"""

from __future__ import annotations

import argparse
import random
import time

from ferrule import Tool, Toolbox

ACTIONS = (
    ("create", "Create a new {}.", "create a {}", "set up another {}"),
    ("delete", "Delete a {} for good.", "delete the {}", "get rid of a {}"),
    ("list", "List all {}s.", "list the {}s", "which {}s do we have"),
    ("search", "Search {}s by words.", "search for a {}", "look up a {} by keyword"),
    ("update", "Change the details of a {}.", "update a {}", "edit a {}"),
    ("export", "Export {}s as a CSV file.", "export the {}s", "download the {}s for Excel"),
    ("share", "Share a {} with a colleague.", "share a {}", "let a coworker see a {}"),
    ("archive", "Archive an old {}.", "archive a {}", "put an outdated {} away"),
    ("approve", "Approve a {} that waits.", "approve the {}", "give the green light to a {}"),
    ("reject", "Reject a {} with a reason.", "reject the {}", "turn down a {}"),
    ("print", "Print a {}.", "print the {}", "put a {} on paper"),
    ("duplicate", "Duplicate a {}.", "duplicate a {}", "make a copy of a {}"),
    ("count", "Count the {}s.", "count the {}s", "how many {}s are there"),
    ("lock", "Lock a {} against changes.", "lock a {}", "prevent edits of a {}"),
    ("rename", "Rename a {}.", "rename a {}", "give a {} another title"),
    ("assign", "Assign a {} to a person.", "assign a {}", "make Ann responsible for a {}"),
    ("remind", "Send a reminder of a {}.", "send a reminder of a {}", "nudge Bob about a {}"),
    ("translate", "Translate a {} into a language.", "translate a {}", "get a {} in French"),
    ("restore", "Restore a deleted {}.", "restore a {}", "bring back a {} that is gone"),
    ("compare", "Compare two {}s.", "compare two {}s", "what differs between two {}s"),
)
"""Name, description, a query in the same words, and a paraphrase."""
THINGS = (
    ("invoice", "bill"),
    ("customer", "client"),
    ("employee", "staff member"),
    ("order", "purchase"),
    ("meeting", "appointment"),
    ("photo", "picture"),
    ("car", "vehicle"),
    ("apartment", "flat"),
    ("doctor", "physician"),
    ("movie", "film"),
    ("song", "piece of music"),
    ("contract", "agreement"),
    ("password", "login secret"),
    ("server", "machine"),
    ("bug", "software defect"),
    ("task", "to-do item"),
    ("project", "undertaking"),
    ("lesson", "class"),
    ("student", "pupil"),
    ("teacher", "school instructor"),
    ("book", "novel"),
    ("newspaper", "daily press"),
    ("shop", "store"),
    ("supplier", "vendor"),
    ("shipment", "delivery"),
    ("warehouse", "depot"),
    ("refund", "repayment"),
    ("salary", "wage"),
    ("tax", "duty"),
    ("loan", "credit"),
    ("donation", "gift of money"),
    ("flight", "plane trip"),
    ("hotel", "inn"),
    ("journey", "trip"),
    ("restaurant", "place to eat"),
    ("dish", "meal"),
    ("drug", "medicine"),
    ("disease", "illness"),
    ("patient", "sick person"),
    ("animal", "creature"),
    ("plant", "flower"),
    ("city", "town"),
    ("road", "street"),
    ("storm", "bad weather"),
    ("crime", "offence"),
    ("law", "statute"),
    ("election", "vote"),
    ("battery", "power cell"),
    ("phone", "mobile"),
    ("computer", "laptop"),
)
"""A thing, and another word for it."""
KINDS = ("same words", "another verb", "another noun", "both")


def tools() -> list[Tool]:
    """One tool for each action on each thing."""
    return [
        Tool(lambda: "done", f"{action}_{thing}", description.format(thing))
        for action, description, _, _ in ACTIONS
        for thing, _ in THINGS
    ]


def queries(kind: str) -> list[tuple[str, str]]:
    """For each tool, a query of this kind and its name."""
    made: list[tuple[str, str]] = []
    for action, _, plain, paraphrase in ACTIONS:
        for thing, other in THINGS:
            query = {
                "same words": plain.format(thing),
                "another verb": paraphrase.format(thing),
                "another noun": plain.format(other),
                "both": paraphrase.format(other),
            }[kind]
            made.append((query, f"{action}_{thing}"))
    return made


def recall(toolbox: Toolbox, asked: list[tuple[str, str]]) -> float:
    """The part of the queries whose tool is among the first five."""
    assert toolbox.shelf is not None
    found = 0
    for query, name in asked:
        found += name in [tool.name for tool in toolbox.shelf.search(query, 5)]
    return found / len(asked)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Recall of a search of 1,000 made tools.")
    parser.add_argument("--most", type=int, default=200, help="the most queries of a kind")
    most = parser.parse_args().most
    chosen = random.Random(1).sample(range(len(ACTIONS) * len(THINGS)), most)
    rows = {kind: [queries(kind)[index] for index in chosen] for kind in KINDS}
    by_words = Toolbox(tools(), search="bm25")
    by_meaning = Toolbox(tools(), search="embedding")
    begun = time.perf_counter()
    recall(by_meaning, rows["same words"][:1])
    print(f"1,000 tools embedded in {time.perf_counter() - begun:.1f} s")
    print('| query | `"bm25"` | `"embedding"` |\n|---|---|---|')
    begun = time.perf_counter()
    for kind, asked in rows.items():
        print(f"| {kind} | {recall(by_words, asked):.3f} | {recall(by_meaning, asked):.3f} |")
    print(f"{(time.perf_counter() - begun) / most / len(rows):.2f} s a query, both searches")


if __name__ == "__main__":
    main()
