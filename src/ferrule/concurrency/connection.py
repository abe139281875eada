"""Connections that wait in a pool for their next use."""

from __future__ import annotations

import select
from typing import Any


def is_usable(connection: Any) -> bool:
    """Whether an idle connection is still there, without a round trip: if its server has something to say, it is the end."""
    if not hasattr(select, "poll"):  # Windows
        return not select.select([connection.fileno()], [], [], 0)[0]
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
