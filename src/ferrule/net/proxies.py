"""Proxies and certificates that the environment names, and errors that name the variable.

`httpx2` reads both from the environment, but its errors name no variable, and show a proxy's
password. The errors raised here name the one and hide the other.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.errors import ConfigurationError, shown
from ferrule.net.loopback import HOSTS

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

T = TypeVar("T")


def trusted_certificates() -> ssl.SSLContext:
    """The certificates to trust. Raises `ConfigurationError` if a named file cannot be read."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    try:
        return _read_certificates(file, folder)
    except OSError as error:  # `ssl.SSLError` is one
        if not file:
            raise
        raise ConfigurationError(
            f"The certificates that `SSL_CERT_FILE` names cannot be read: {shown(file)}: "
            f"{error.strerror or error}. Name a file of certificates in PEM form, or remove "
            f"`SSL_CERT_FILE` from the environment."
        ) from error


@lru_cache(maxsize=4)
def _read_certificates(file: str | None, folder: str | None) -> ssl.SSLContext:
    # All models share the certificates: reading them blocks an event loop for many milliseconds.
    # httpx2 reads the two variables itself; they are arguments only as the key of the cache.
    del file, folder
    import httpx2

    return httpx2.create_ssl_context()


def environment_proxies() -> dict[str, str]:
    """The proxies by kind, as `httpx2` reads them: from variables, or from the system settings.

    Only macOS and Windows have such settings.
    """
    from urllib.request import getproxies

    proxies = getproxies()
    return {kind: proxies[kind] for kind in ("http", "https", "all") if proxies.get(kind)}


def past_proxies() -> dict[str, Any]:
    """The `mounts` for a client of `httpx2`: this machine is reached past a proxy of the settings.

    Python does not read the exceptions in these settings, and other programs reach this machine
    directly. For proxies in environment variables there is `NO_PROXY`.
    """
    if any(_proxy_variable(kind) for kind in environment_proxies()):
        return {}
    return {f"all://{host}": None for host in HOSTS}


def with_proxies(make_client: Callable[[], T]) -> T:
    """Make a client that reads the proxies of the environment.

    Raises `ConfigurationError` that names the variable of a proxy that `httpx2` cannot use.
    """
    import httpx2

    try:
        return make_client()
    except (ImportError, ValueError, httpx2.InvalidURL):
        error = _proxy_error()
        if error is None:
            raise
    # Outside `except`: errors of httpx2 show parts of the address, which may hold a password.
    raise error


def _proxy_error() -> ConfigurationError | None:
    """The error for the first proxy that cannot be used."""
    for kind, address in environment_proxies().items():
        variable = _proxy_variable(kind)
        source, remedy = "the network settings of this system", "change them"
        if variable is not None:
            source, remedy = f"`{variable}`", f"remove `{variable}` from the environment"
        match _proxy_fault(address):
            case "no package":
                return ConfigurationError(
                    f"The proxy that {source} names speaks SOCKS, which needs another package: "
                    f"{_public_address(address)}. Install it with pip install 'httpx2[socks]', or "
                    f"{remedy}."
                )
            case "no address":
                return ConfigurationError(
                    f"The proxy that {source} names has an invalid address: "
                    f"{_public_address(address)}. Write it as `http://host:port`, "
                    f"`https://host:port` or `socks5://host:port`, or {remedy}."
                )
            case _:
                continue
    return None


def _proxy_fault(address: str) -> str | None:
    """Why `httpx2` cannot use a proxy; None if it can."""
    import httpx2

    try:
        httpx2.HTTPTransport(
            proxy=address if "://" in address else f"http://{address}", verify=False
        ).close()
    except ImportError:
        return "no package"
    except (ValueError, httpx2.InvalidURL):
        return "no address"
    return None


def _proxy_variable(kind: str) -> str | None:
    """The variable that holds a proxy: `urllib` accepts any case, and prefers lower case."""
    names = [name for name in os.environ if name.lower() == f"{kind}_proxy" and os.environ[name]]
    return min(names, key=lambda name: not name.islower(), default=None)


def _public_address(address: str) -> str:
    """A proxy's address without user, password and query, even if it is malformed."""
    scheme = address.partition("://")[0]
    host = address.rpartition("@")[2].rpartition("://")[2].partition("?")[0]
    if "://" in address and scheme.isalnum():
        return shown(f"{scheme}://{host}")
    return shown(host)
