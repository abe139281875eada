"""`allow` and `deny` of a server: names and patterns that fit none of its tools."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from ferrule.mcp_bridge.client.options import options_from

NAMES = ("read_file", "delete_all")


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"allow": ["zzz*"]}, "read_file"),
        ({"allow": "zzz*"}, "read_file"),
        ({"allow": ["read_fiel"]}, "did you mean `read_file`"),
        ({"deny": {"delete_al"}}, "did you mean `delete_all`"),
    ],
)
def test_what_fits_no_tool_warns(options: dict[str, Any], hint: str) -> None:
    with pytest.warns(UserWarning, match=hint):
        options_from(options).warn_of_names("files", NAMES)


@pytest.mark.parametrize("options", [{"allow": ["read_*"]}, {"deny": bool}, {}])
def test_what_fits_a_tool_is_silent(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options_from(options).warn_of_names("files", NAMES)
