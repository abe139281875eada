"""Tools for testing programs that use ferrule.

Models without a provider, a server on loopback, a blocked network, tokens without a model.

`serve(lm)` serves any model of ferrule over HTTP in this process; `python -m ferrule.testing --port
8000` serves `AutoLM` in its own process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferrule.testing.byte_tokens import byte_vocabulary, random_walk
    from ferrule.testing.network import NetworkBlockedError, block_network
    from ferrule.testing.offline.model import AutoLM
    from ferrule.testing.replay import RecordLM, ReplayLM
    from ferrule.testing.scripted import ScriptedLM
    from ferrule.testing.server.server import Served, serve

__all__ = [
    "AutoLM",
    "NetworkBlockedError",
    "RecordLM",
    "ReplayLM",
    "ScriptedLM",
    "Served",
    "block_network",
    "byte_vocabulary",
    "random_walk",
    "serve",
]

_HOMES = {
    "byte_tokens": ("byte_vocabulary", "random_walk"),
    "network": ("NetworkBlockedError", "block_network"),
    "offline.model": ("AutoLM",),
    "replay": ("RecordLM", "ReplayLM"),
    "scripted": ("ScriptedLM",),
    "server.server": ("Served", "serve"),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module `ferrule.testing` has no attribute `{name}`")
    return getattr(import_module(f"ferrule.testing.{home}"), name)
