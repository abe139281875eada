"""The requests that a server on this machine accepts.

They name this machine in `Host` and, if a web page sends them, in `Origin`. Otherwise a web page
could reach the server under its own host name (DNS rebinding; MCP specification, "Streamable HTTP",
security warning).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HOSTS = ("127.0.0.1", "localhost", "[::1]")
ORIGINS = tuple(f"http://{host}" for host in HOSTS)


def is_loopback(address: str) -> bool:
    """Whether a server that listens on this address can be reached only from this machine."""
    return address in {*HOSTS, "::1"}


def with_ports(names: Iterable[str]) -> list[str]:
    """The names, and each with `:*` for any port, as the MCP SDK takes them."""
    forms: list[str] = []
    for name in names:
        forms += [name, f"{name}:*"]
    return forms


def refusal(host: str | None, origin: str | None) -> tuple[int, str] | None:
    """The status and the reason to refuse a request; None to accept it.

    Refused is a request that names another host, or comes from a page of another host. A request
    without `Origin` does not come from a web page. The statuses are those of the MCP SDK's servers.
    """
    if not _is_one_of(host or "", HOSTS):
        return 421, "`Host` names another machine"
    if origin and not _is_one_of(origin, ORIGINS):
        return 403, "`Origin` is a page of another host"
    return None


def _is_one_of(address: str, names: tuple[str, ...]) -> bool:
    """Whether an address is one of the names, with or without a port."""
    if address in names:
        return True
    name, _, port = address.rpartition(":")
    return name in names and not port.strip("0123456789")
