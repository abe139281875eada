"""Secrets in command lines, addresses and logs.

They are shown as `***`, and saved as the variable to read them from again. A text is secret because
of where it stands, whatever it looks like: a value of `NAME=value`, of `-e`, `-H` or a flag named
after a secret; the user, query values and fragment of an address.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Hide = Callable[[str, str], str]
    """`hide(value, name)`: the replacement of a secret, such as the value of a header `name`."""
    Keep = Callable[[str], str]
    """The form of a text that is not a secret."""

VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_REFERENCE = re.compile(rf"\$\$(?=\{{)|{VARIABLE.pattern}|\$\{{(?P<other>[^{{}}]*)\}}")
_ONLY_REFERENCE = re.compile(r"(?:[A-Za-z]+[ :])?" + r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}]*)?\}")
"""A value that is only a variable, perhaps after a word, as in `Bearer ${TOKEN}`."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LIKE_A_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)=(?P<value>.*)", re.DOTALL)
_SECRET_WORD = re.compile(
    r"key|token|secret|passw|pwd|auth|sig|credential|bearer|cookie|jwt"
    r"|(?<![a-z])(?:pat|pass|dsn|code|otp)(?![a-z])",
    re.IGNORECASE,
)
_ENVIRONMENT, _HEADER = frozenset({"-e", "--env"}), frozenset({"-H", "--header"})
_GLUED = re.compile(r"(?P<flag>-e|-H)(?P<value>[A-Za-z_][\w.-]*[=:].*)", re.DOTALL)
_HOST = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::\d*)?|.*\$\{.*")
# Bounded, as a search from each letter to the end of a word is quadratic.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://\S+")


def redact(text: str) -> str:
    """Another program's text, with its addresses as `public_url` shows them."""
    return _ADDRESS.sub(lambda address: public_url(address[0]), text)


def public_url(url: str) -> str:
    """An address without user, password, fragment and query values."""
    return hidden_url(url.partition("#")[0], _stars, str).replace("***@", "")


def public_words(words: Iterable[str]) -> list[str]:
    """The words of a command line, with `***` for secrets."""
    return hidden_words(words, _stars, str)


def _stars(value: str, name: str) -> str:
    del value, name
    return "***"


class References:
    """Replaces secrets by references to variables, one for each value.

    `hide(value, "token")` returns `${SERVER_TOKEN}`.
    """

    def __init__(self, server: str, *, expands: bool) -> None:
        self._server = server
        self._expands = expands
        """Whether texts may hold variables already, which then stay."""
        self._values: dict[str, str] = {}
        """By variable: the secret that it names, or the reference that was there before."""

    def hide(self, value: str, name: str) -> str:
        """A reference to the variable `name`, or to one named after the server and `name`."""
        if _LIKE_A_VARIABLE.fullmatch(name):
            return self.as_variable(value, name)
        variable = re.sub(r"[^A-Z0-9]+", "_", f"{self._server}_{name}".upper())
        return self.as_variable(value, variable.strip("_"))

    def as_variable(self, value: str, variable: str) -> str:
        """A reference by the variable's own name, if it is a valid name."""
        if not value or (self._expands and _ONLY_REFERENCE.fullmatch(value)):
            self._values.update((match["name"], match[0]) for match in VARIABLE.finditer(value))
            return value
        if not _NAME.fullmatch(variable):
            variable = "V_" + re.sub(r"[^A-Za-z0-9_]+", "_", variable)
        name = variable
        count = 1
        while self._values.setdefault(name, value) != value:  # another secret has this name
            count += 1
            name = f"{variable}_{count}"
        return f"${{{name}}}"

    def keep(self, text: str) -> str:
        """The form of a text that is not a secret.

        It is escaped, unless the spec has variables: `${NAME}` in its texts then means one.
        """
        if self._expands:
            return text
        return escaped(text)


def escaped(text: str) -> str:
    """The text in a form that `expand` turns back into it."""
    return text.replace("${", "$${")


def expand(text: str, value_of: Callable[[re.Match[str]], str]) -> str:
    """A text with its references replaced; `$${` stands for `${`.

    A match that `value_of` gets has the group `name`, with a `default`, for a variable, and `other`
    for any other reference.
    """

    def replacement(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return value_of(match)

    return _REFERENCE.sub(replacement, text)


# -- where secrets stand


def hidden_url(url: str, hide: Hide, keep: Keep) -> str:
    """An address with its secrets hidden. Never raises, whatever the text."""
    scheme, mark, rest = url.partition("://")
    rest, hash_mark, fragment = rest.partition("#")
    rest, question, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    user, at_sign, host = authority.rpartition("@")
    begin = f"{keep(scheme)}{mark}"
    if not _HOST.fullmatch(host):  # a password with a `/`, `?` or `#` in it
        return begin + hide(url[len(scheme) + len(mark) :], "address")
    if user:
        user = hide(user, "user")
    if query:
        query = "&".join(_hidden_pair(pair, hide, keep) for pair in query.split("&"))
    if fragment:
        fragment = hide(fragment, "fragment")
    origin = f"{begin}{user}{at_sign}{keep(host)}"
    return f"{origin}{slash}{keep(path)}{question}{query}{hash_mark}{fragment}"


def _hidden_pair(pair: str, hide: Hide, keep: Keep) -> str:
    key, equals, value = pair.partition("=")
    if not equals:
        return hide(key, "query")
    return f"{keep(key)}={hide(value, key) if value else ''}"


def hidden_words(words: Iterable[str], hide: Hide, keep: Keep) -> list[str]:
    """The words of a command line, with its secrets hidden."""
    hidden: list[str] = []
    flag = ""
    for word in words:
        hidden.append(_hidden_word(word, flag, hide, keep))
        flag = ""
        if takes_next(word):
            flag = word
    return hidden


def takes_next(word: str) -> bool:
    """Whether the next word is this one's value, and may be secret."""
    if word in _ENVIRONMENT or word in _HEADER:
        return True
    return word.startswith("-") and "=" not in word and bool(_SECRET_WORD.search(word))


def has_secret(word: str) -> bool:
    """Whether a word on its own holds a secret."""
    return _hidden_word(word, "", _stars, str) != word


def _hidden_word(word: str, flag: str, hide: Hide, keep: Keep) -> str:
    """A word of a command line; `flag` is the word before it, if that takes a value."""
    if word.startswith("-"):
        glued = _GLUED.fullmatch(word)
        if glued is not None:
            return glued["flag"] + _hidden_value(glued["value"], glued["flag"], hide, keep)
        flag, equals, value = word.partition("=")
        if not equals:
            return keep(word)
        return f"{keep(flag)}={_hidden_value(value, flag, hide, keep)}"
    return _hidden_value(word, flag, hide, keep)


def _hidden_value(value: str, flag: str, hide: Hide, keep: Keep) -> str:
    """The value of a flag; without a flag, a word on its own."""
    if flag in _HEADER:
        name, colon, rest = value.partition(":")
        if not colon:
            return hide(value, "header")
        header_value = rest.lstrip()
        blank = rest.removesuffix(header_value)
        return f"{keep(name)}:{blank}{hide(header_value, name)}"
    assigned = _ASSIGNED.fullmatch(value)
    if assigned is not None and (not flag or flag in _ENVIRONMENT):
        name, assigned_value = assigned["name"], assigned["value"]
        return f"{keep(name)}={hide(assigned_value, name) if assigned_value else ''}"
    if flag and flag not in _ENVIRONMENT and _SECRET_WORD.search(flag):
        return hide(value, flag)
    if "://" in value:
        return hidden_url(value, hide, keep)
    return keep(value)


# -- logs

_LOGIN_LOGGER = "mcp.client.auth.oauth2"
_LOGGERS = ("httpx2", "mcp.client.streamable_http", "mcp.client.sse")


def redact_logs() -> None:
    """Redact the logs of the HTTP client and the SDK, which name the address of every request.

    Of an error during a log-in, only the kind is logged.
    """
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_redact_record)  # logging adds the same filter once
    logging.getLogger(_LOGIN_LOGGER).addFilter(_name_error)


def _redact_record(record: logging.LogRecord) -> bool:
    record.msg = redact(record.getMessage())
    record.args = ()
    if record.exc_info:
        record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
        record.exc_info = None
    return True


def _name_error(record: logging.LogRecord) -> bool:
    """Log only the kind of an error: its text may quote a response with tokens.

    An error of ferrule is the caller's, and is not logged.
    """
    kind = record.exc_info[0] if record.exc_info else None
    if kind is not None:
        if kind.__module__.startswith("ferrule."):
            return False
        record.msg = f"{record.getMessage()}: {kind.__name__}"
        record.args = ()
        record.exc_info = record.exc_text = None
    return _redact_record(record)
