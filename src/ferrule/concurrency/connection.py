"""A check for connections that are idle in a pool."""

from __future__ import annotations

import select
from typing import Any


def is_usable(connection: Any) -> bool:
    """Whether an idle connection is still open, found without a round trip.

    If it has data to read, the server has closed it.
    """
    if not hasattr(select, "poll"):  # Windows
        return not select.select([connection.fileno()], [], [], 0)[0]
    # `poll`, not `select`, which fails for file descriptors from 1024 up.
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
