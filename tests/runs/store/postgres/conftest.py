"""Stores of Postgres for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ferrule import PostgresStore


@pytest.fixture
def opened() -> Iterator[Callable[..., PostgresStore]]:
    """Makes stores, and closes them."""
    stores: list[PostgresStore] = []

    def make(*given: Any, **options: Any) -> PostgresStore:
        store = PostgresStore(*given, **options)
        stores.append(store)
        return store

    yield make
    for each in stores:
        each._leases.clear()
        each.close()
