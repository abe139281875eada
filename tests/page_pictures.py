"""`scripts/screenshots.sh`: every page as a picture, light and dark, wide and narrow, for somebody
to look at.
"""

from __future__ import annotations

import base64
import struct
import sys
import tempfile
import threading
import zlib
from pathlib import Path
from typing import Any

from page_server import browser, served
from page_store import TOOLS, answer, call, fill, support

from ferrule import Image, ReAct, SQLiteStore, context
from ferrule.testing import ScriptedLM
from ferrule.web.ui import ui_app

LOOKS = {"light": (1180, 820, "light"), "dark": (1180, 820, "dark"), "narrow": (360, 740, "light")}


def pages(many: str) -> dict[str, tuple[str, str]]:
    return {
        "runs": ("full", "/"), "run": ("full", "/runs/order-1009"), "nested": ("full", "/runs/order-1020"), "error": ("full", "/runs/order-1017"),
        "question": ("full", "/runs/order-1042"), "nested-form": ("full", "/runs/order-1040"), "inbox": ("full", "/inbox"),
        "running": ("full", "/runs/order-1050"), "clarify": ("full", "/runs/order-1031"), "picture": ("full", "/runs/order-1002"),
        "missing": ("full", "/runs/nowhere"), "empty": ("empty", "/"), "empty-inbox": ("empty", "/inbox"), "many": (many, "/"),
        "chat-new": ("full", "/chat"), "chat": ("full", "/chat/order-1009"), "chat-question": ("full", "/chat/order-1042"),
        "chat-resume": ("full", "/runs/order-1017"), "long": ("full", "/runs/order-1099"), "misfit": ("full", "/runs/order-1040"),
        "decided": ("decided", "/runs/order-1042"), "decided-inbox": ("decided", "/inbox"), "decided-runs": ("decided", "/"),
        "more": ("full", "/runs/order-1042"),
    }  # fmt: skip


def main(folder: Path, only: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        stores = {
            name: SQLiteStore(Path(place) / f"{name}.db", full_sync=False)
            for name in ("full", "empty", "many", "decided")
        }
        fill(stores["full"])
        picture_run(stores["full"])
        long_run(stores["full"])
        [asked] = fill(stores["decided"]).summary("order-1042").questions
        stores["decided"].decide("order-1042", asked.approve(euros=20).signed("ann", "web"))
        stores["empty"].list()
        wanted = {name: each for name, each in pages("many").items() if not only or name in only}
        if "many" in wanted:
            fill_many(stores["many"], 10_000)
        going_on = threading.Event()
        worker = threading.Thread(target=slow_run, args=(stores["full"], going_on), daemon=True)
        worker.start()
        with browser() as opened:
            for name, (store, path) in wanted.items():
                app = ui_app(
                    stores[store],
                    support() if name.startswith("chat") else None,
                    people=["ann"],
                )
                with served(app) as address:
                    for look, (width, height, scheme) in LOOKS.items():
                        shoot(
                            opened,
                            address + app.links["ann"],
                            address + path,
                            folder / f"{name}-{look}.png",
                            size=(width, height),
                            scheme=scheme,
                        )
        going_on.set()
        worker.join(10)
        for each in stores.values():
            each.close()


def shoot(
    opened: Any,
    link: str,
    address: str,
    file: Path,
    *,
    size: tuple[int, int],
    scheme: str,
) -> None:
    page = opened.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page.goto(link)
    page.goto(address)
    if "nested-" in file.name and "form" not in file.name:
        page.locator("details.inside > summary").first.click()
    if "misfit-" in file.name:
        page.get_by_text("Edit", exact=True).first.click()
        page.locator("textarea[name='v:lines']").fill("one kettle")
        page.get_by_role("button", name="Approve").first.click()
    if "more-" in file.name:
        for each in page.locator("details:is(.others, .edit) > summary").all():
            each.click()
    page.wait_for_timeout(250)
    page.screenshot(path=str(file), full_page=size[0] < 600)
    page.close()


def fill_many(store: SQLiteStore, count: int) -> None:
    statuses = ["done", "done", "done", "failed", "cancelled", "running"]
    error = '{"type": "UnavailableError", "text": "The model gpt-5-mini did not answer: connection refused."}'

    def write(db: Any) -> None:
        for number in range(count):
            status = statuses[number % len(statuses)]
            at = 1_790_000_000 + number * 60
            db.execute(
                "INSERT INTO ferrule_runs (id, program, status, created_at, updated_at, questions, head, error, usage) VALUES (?, ?, ?, ?, ?, '[]', '{}', ?, ?)",
                (
                    f"order-{number:05d}",
                    ("Support", "Billing")[number % 2],
                    status,
                    at,
                    at + 20,
                    error if status == "failed" else None,
                    f'{{"input_tokens": {1_000 + number * 7 % 9_000}, "output_tokens": 86, "calls": {1 + number % 9}, "cost": 0.0{1 + number % 9}12}}',
                ),
            )

    store.list()
    store._file.write(write)


def picture_run(store: SQLiteStore) -> None:
    """A photograph, as far as sixty lines of colours are one."""
    rows = b"".join(
        b"\0"
        + bytes(min(255, c) for x in range(480) for c in (60 + x // 4, 90 + y // 2, 160 - y // 4))
        for y in range(270)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 480, 270, 8, 2, 0, 0, 0)
    drawn = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )

    def photo(order: str) -> tuple[str, Image]:
        """A photo of the order."""
        return "Taken at the door, 6 November.", Image(data=base64.b64encode(drawn).decode())

    answers = [
        answer("", call("photo", order="A-1002")),
        answer("", call("finish", answer="It stands at the door.")),
    ]
    with context(lm=ScriptedLM(answers)):
        ReAct("message -> answer", [photo]).start(
            message="Is it there?",
            store=store,
            run_id="order-1002",
        )


def long_run(store: SQLiteStore) -> None:
    def by(request: Any) -> Any:
        turn = sum(each.role == "tool" for each in request.messages)
        done = turn == 249
        return answer(
            "",
            call("finish", answer="Seen.") if done else call("look_up_order", order=f"A-{turn}"),
            thought="On to the next.",
        )

    with context(lm=ScriptedLM(by=by)):
        ReAct("message -> answer", TOOLS, max_iters=260).start(
            message="Look at all orders.",
            store=store,
            run_id="order-1099",
        )


def slow_run(store: SQLiteStore, going_on: threading.Event) -> None:
    def by(request: Any) -> Any:
        if len(request.messages) > 4:
            going_on.wait(120)
        return answer("", call("look_up_order", order="A-1050"), thought="I look again.")

    with context(lm=ScriptedLM(by=by)):
        support().start(
            message="Tell me everything about A-1050.",
            store=store,
            run_id="order-1050",
        )


def pictures_of_the_docs(folder: Path) -> None:
    """The pictures in docs/how-to/running/web.md and README.md: `python -m page_pictures docs`."""
    with tempfile.TemporaryDirectory() as place, browser() as opened:
        store = fill(SQLiteStore(Path(place) / "shop.db", full_sync=False))
        app = ui_app(store, people=["ann"])
        with served(app) as address:
            page = opened.new_page(viewport={"width": 1000, "height": 530})
            page.goto(address + app.links["ann"])
            page.screenshot(path=str(folder / "web-runs.png"))
            page.set_viewport_size({"width": 1000, "height": 1400})
            page.goto(f"{address}/inbox")
            question = page.locator(".question", has_text="refund")
            question.get_by_text("Edit", exact=True).click()
            question.get_by_label("euros").fill("25")
            question.screenshot(path=str(folder / "web-question.png"))
        store.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["docs"]:
        pictures_of_the_docs(Path("docs/images"))
    else:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots"), sys.argv[2:])
