"""What all services share: the tools, the table of conversations, the form of an event."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

MODEL_URL = os.environ.get("MODEL_URL", "")
FOLDER = Path(os.environ.get("SERVICE_FOLDER", "."))
KEEPS_RUNS = os.environ.get("SERVICE_KEEPS_RUNS") == "1"
INSTRUCTIONS = "Help the customer of a shop."


def order(number: str) -> str:
    """Look up an order."""
    return f"{number}: one tent, shipped on Monday"


def stock(article: str) -> int:
    """How many of an article are in stock."""
    return len(article)


def refund(number: str, euros: float) -> str:
    """Pay money back for an order."""
    return f"{euros} euros paid back for {number}"


class Conversations:
    """A table of texts by conversation."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(FOLDER / "conversations.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS conversations "
            "(id TEXT PRIMARY KEY, history TEXT, waiting TEXT)"
        )

    def read(self, chat: str) -> tuple[str | None, str | None]:
        """The history, and what waits for a decision."""
        sql = "SELECT history, waiting FROM conversations WHERE id = ?"
        return self._db.execute(sql, (chat,)).fetchone() or (None, None)

    def write(self, chat: str, history: str | None, waiting: str | None = None) -> None:
        sql = "INSERT OR REPLACE INTO conversations VALUES (?, ?, ?)"
        self._db.execute(sql, (chat, history, waiting))


def sse(kind: str, text: Any = "") -> str:
    return f"data: {json.dumps({'type': kind, 'text': text})}\n\n"
