"""Which requests a server on this machine answers."""

from __future__ import annotations

import pytest

from ferrule.net.loopback import is_loopback, refusal, with_ports


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost", None, None),
        ("127.0.0.1:8000", None, None),
        ("[::1]:8000", "", None),
        ("localhost", "http://localhost:3000", None),
        ("localhost", "http://127.0.0.1", None),
        (None, None, 421),
        ("", None, 421),
        ("evil.example.com", None, 421),
        ("localhost.evil.example.com", None, 421),
        ("localhost", "https://evil.example.com", 403),
        ("localhost", "http://localhost.evil.example.com", 403),
        ("localhost", "null", 403),
    ],
)
def test_only_this_machine_and_its_pages_are_answered(
    host: str | None,
    origin: str | None,
    status: int | None,
) -> None:
    refused = refusal(host, origin)
    assert (refused and refused[0]) == status


def test_a_name_goes_with_every_port() -> None:
    assert with_ports(["a", "b"]) == ["a", "a:*", "b", "b:*"]


@pytest.mark.parametrize(
    ("address", "is_local"),
    [("127.0.0.1", True), ("::1", True), ("[::1]", True), ("0.0.0.0", False), ("::", False)],
)
def test_an_address_is_local_or_not(address: str, is_local: bool) -> None:
    assert is_loopback(address) == is_local
