"""What the environment says of proxies and certificates, told where it is of no use.

`httpx2` reads these variables when a client is made, whatever address that is for, and fails with errors that name none of them.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ferrule.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

T = TypeVar("T")

_KINDS = ("http", "https", "all")


def with_proxies(make: Callable[[], T]) -> T:
    """A client, made; raises `ConfigurationError` that names the variable whose proxy `httpx2` cannot use."""
    import httpx2

    try:
        return make()
    except (ImportError, ValueError, httpx2.InvalidURL):
        found = _bad_proxy()
        if found is None:  # something else
            raise
    raise found  # out here, so that it carries no error of `httpx2`: these show parts of the address, and there may be a password in it


@contextmanager
def certificates_told() -> Generator[None]:
    """Around the reading of certificates: raises `ConfigurationError` that names the variable where they are not to be found."""
    try:
        yield
    except OSError as error:  # `ssl.SSLError` is one
        path = os.environ.get("SSL_CERT_FILE")
        if not path:
            raise
        msg = (
            f"The certificates that `SSL_CERT_FILE` names cannot be read: {shown(path)}: {error.strerror or error}. "
            f"Name a file of certificates in PEM form there, or take `SSL_CERT_FILE` out of the environment."
        )
        raise ConfigurationError(msg) from error


def _bad_proxy() -> ConfigurationError | None:
    from urllib.request import getproxies

    import httpx2

    proxies = getproxies()  # what `httpx2` asks; on macOS and Windows the system's own settings are among them
    for kind in _KINDS:
        value = proxies.get(kind)
        if not value:
            continue
        where = _variable(kind)
        named = f"`{where}`" if where else "the network settings of this system"
        away = f"take `{where}` out of the environment" if where else "change them"
        try:
            httpx2.HTTPTransport(proxy=value if "://" in value else f"http://{value}", verify=False).close()
        except ImportError:
            return ConfigurationError(
                f"The proxy that {named} names speaks SOCKS, for which a package is missing: {_public(value)}. "
                f"Install it with pip install 'httpx2[socks]', or {away}."
            )
        except (ValueError, httpx2.InvalidURL):
            return ConfigurationError(
                f"The proxy that {named} names has no address that can be used: {_public(value)}. "
                f"Write it as `http://host:port`, `https://host:port` or `socks5://host:port`, or {away}."
            )
    return None


def _variable(kind: str) -> str | None:
    """The variable that holds it: `urllib` takes any case, and lower case first."""
    names = [name for name in os.environ if name.lower() == f"{kind}_proxy" and os.environ[name]]
    return min(names, key=lambda name: not name.islower(), default=None)


def _public(value: str) -> str:
    """The address without user, password and query, however badly it is written."""
    scheme = value.partition("://")[0]
    place = value.rpartition("@")[2].rpartition("://")[2].partition("?")[0]
    return shown(f"{scheme}://{place}" if "://" in value and scheme.isalnum() else place)
