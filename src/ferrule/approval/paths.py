"""`under`: a condition of a rule on a path, by the file that it leads to.

A pattern compares text, and `src/../etc` fits `src/*`. `under` follows the path on the disk of the
process that runs the tool, as `open` would, and compares what it reaches.

It has three answers, as all conditions have. A path lies inside the folder, or outside, or is in
doubt: an `allow` then does not apply, and an `ask` or a `deny` does. In doubt is every path that a
tool, another system or a person may read differently from how it is written, and every path that
cannot be followed. So the text is judged before the disk is asked:

- `..`, also as it would become by Unicode normalization, by `~`, by a variable or by URL decoding;
- names that a system cuts or folds: a dot or a space at the end, invisible characters, signs that
  look like separators, the devices of Windows;
- on Windows, what is not a plain relative path or one with a drive (shares, device paths, a path
  relative to a drive, alternate streams); elsewhere, every backslash and colon, because a tool may
  read Windows' paths.

The rules for names are the same on all systems, because a grant or a policy moves with its run.
What no look at a path can tell: a hard link, and a file that is replaced while the tool opens it.
"""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from ferrule.encoding.encode import is_masked
from ferrule.encoding.pattern import pattern
from ferrule.encoding.safe_text import is_hidden
from ferrule.errors import ConfigurationError, checks_keywords, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LONGEST = 4096
_PATH_FORMATS = frozenset({"path", "file-path", "directory-path"})
"""The formats that pydantic gives to `Path`, `FilePath` and `DirectoryPath`."""
_PATH_NAMES = frozenset(
    {"path", "paths", "file", "files", "filename", "filepath", "folder", "dir", "directory", "cwd"}
)
_WORD = pattern(r"[A-Z]?[a-z]+|[A-Z]+")
_IS_WINDOWS = os.name == "nt"
_FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")
_EXPANDED = pattern(
    # `%2e`, `%u002e`, `%NAME%`, `$NAME`, `${NAME}`
    r"%(?:[0-9a-f]{2}|u[0-9a-f]{4})|%\w+%|\$[a-z_{(]",
    re.IGNORECASE,
)
_DEVICES = pattern(r"con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9]", re.IGNORECASE)
_LOOKALIKES = (" SOLIDUS ", " SLASH ", " SET MINUS ", " COLON ", " RATIO ")
"""Words in the Unicode names of characters that look like a separator.

Programs that convert paths to an older character set read some of them as one."""


class Under(Struct, frozen=True):
    """A condition that a path lies in a folder. Made by `under`. Call it with a path."""

    folder: str
    root: str | None = None
    kind: Literal["under"] = "under"
    """Tells this condition from a value, in the stored form of a grant."""

    def __post_init__(self) -> None:
        folder, root = self.folder, self.root
        if is_ambiguous(folder):
            raise ConfigurationError(
                "`under` takes a folder that can be read in one way only, without `..`, `~` and "
                f"the like; found {shown(folder)}. It starts from `root=`."
            )
        if root is not None and (not root or root.startswith("~")):
            raise ConfigurationError(
                f"`root` of `under` is the path of a folder, found {shown(root)}. "
                "For the home directory, pass `Path.home()`."
            )
        if root is not None and Path(folder).is_absolute():
            raise ConfigurationError(
                f"An absolute folder has no root; found under({shown(folder)}, root={shown(root)})."
            )

    def __call__(self, path: Any) -> bool | None:
        """Whether the path leads to the folder or into it; None in doubt."""
        # The stars that a secret is shown as say nothing about its path.
        if not isinstance(path, str) or is_masked(path) or is_ambiguous(path):
            return None
        try:
            # Not kept: links change, and so does the working directory.
            root = Path(self.root or ".").resolve(strict=True)
            folder = _reached(root / self.folder)
            reached = _reached(root / path)
        except (OSError, RuntimeError, ValueError):  # a circle of links, no permission, too long
            return None
        if not Path(self.folder).is_absolute() and not _is_inside(folder.parts, root.parts):
            return None  # the folder has become a link that leads out
        if _is_inside(reached.parts, folder.parts):
            return True
        if _is_inside(_folded(reached), _folded(folder)):
            return None  # inside, where the system ignores case or normalization
        return False

    def __repr__(self) -> str:
        if self.root is None:
            return f"under({self.folder!r})"
        return f"under({self.folder!r}, root={self.root!r})"


class UnderOnServer(Under, frozen=True):
    """`Under` for a tool of an MCP server, which has a working directory of its own.

    Where it reads a relative path from is known only from `root`.
    """

    def __call__(self, path: Any) -> bool | None:
        """As `Under`, and in doubt about a relative path without a root."""
        if self.root is None and isinstance(path, str) and not Path(path).is_absolute():
            return None
        return super().__call__(path)


def conditions_on_server(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions for a call of a tool that runs in an MCP server."""
    changed = dict(conditions)
    for name, condition in conditions.items():
        if isinstance(condition, Under):
            changed[name] = UnderOnServer(condition.folder, condition.root)
    return changed


@checks_keywords
def under(
    folder: str | os.PathLike[str], /, *, root: str | os.PathLike[str] | None = None
) -> Under:
    """A condition of a rule: the argument is a path in this folder, or the folder itself.

    `allow("write_file", path=under("src"))` allows `src/a.py`, and neither `src/../a.py` nor a link
    in `src` that leads elsewhere. The path is followed on the disk of the process that runs the
    tool, when the rule is applied and again right before the call.

    A tool of an MCP server runs in another process: there, a relative path is in doubt without a
    `root`, and so is every path on a server of another machine, whose disk is not this one.

    Args:
        folder: The folder, absolute or relative to `root`.
        root: The folder from which the tool reads relative paths. None: the working directory of
            the process that runs the tool.

    Raises:
        ConfigurationError: The folder itself can be read in more than one way (`..`, `~`), or it is
            absolute and has a root.

    """
    if root is None:
        return Under(_text(folder))
    return Under(_text(folder), _text(root))


def _text(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigurationError(f"`under` takes the path of a folder, found {shown(path)}.")
    text = os.fspath(cast("str | os.PathLike[str]", path))
    if not isinstance(text, str):  # a path of bytes
        raise ConfigurationError(f"`under` takes a path as text, found {shown(text)}.")
    return text


def read_under(form: Any) -> Any:
    """The condition, if this is its stored form; any other value unchanged."""
    if isinstance(form, dict):
        fields = cast("dict[str, Any]", form)
        if fields.keys() == set(Under.__struct_fields__) and fields["kind"] == "under":
            return Under(**fields)
    return cast("Any", form)


def folder_of(path: str) -> str:
    """The folder that a path is in, as text; empty if it is in doubt, and for a whole disk."""
    if is_ambiguous(path):
        return ""
    folder = Path(path).parent
    if folder.parent == folder and folder.is_absolute():
        return ""
    return str(folder)


def is_path_argument(name: str, value: Any, schema: Any) -> bool:
    """Whether an argument is a path, by its schema, its name, or the look of its value."""
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[Any]", value)
        return any(is_path_argument(name, item, None) for item in items)
    if not isinstance(value, str):
        return False
    if isinstance(schema, dict) and cast("dict[str, Any]", schema).get("format") in _PATH_FORMATS:
        return True
    words = [word.casefold() for word in _WORD.findall(name)]
    if not _PATH_NAMES.isdisjoint(words):
        return True
    return looks_like_path(value) and not any(map(str.isspace, value))


def looks_like_path(text: str) -> bool:
    """Whether a text looks like a path of several names. An address on the web does not."""
    starts = [text.index(separator) for separator in "/\\" if separator in text]
    if not starts or "://" in text:
        return False
    # "git push origin/main" is a command.
    return not any(character.isspace() for character in text[: min(starts)])


def is_ambiguous(path: str, *, windows: bool = _IS_WINDOWS) -> bool:
    """Whether a tool or a system may read this path differently from how it is written."""
    if not 0 < len(path) <= _LONGEST or any(map(_is_deceptive, path)):
        return True
    spellings = {path}
    if not path.isascii():
        spellings.update(unicodedata.normalize(form, path) for form in _FORMS)
    return any(_has_two_readings(spelling, windows=windows) for spelling in spellings)


def _is_deceptive(character: str) -> bool:
    if character in "\n\t" or is_hidden(character):
        return True
    if character.isascii():
        return False
    name = f" {unicodedata.name(character, '')} "
    # A character without a name may be a separator in a later version of Unicode.
    return name == "  " or any(word in name for word in _LOOKALIKES)


def _has_two_readings(path: str, *, windows: bool) -> bool:
    is_expanded = path.startswith("~") or _EXPANDED.search(path) is not None
    is_share_or_device = path.startswith(("//", "\\\\"))
    if is_expanded or is_share_or_device:
        return True
    if windows:
        anchor = PureWindowsPath(path)
        if bool(anchor.drive) != bool(anchor.root):  # `C:name`, or `\name` on whatever drive
            return True
        path = path[len(anchor.drive) :].replace("\\", "/")
    if "\\" in path or ":" in path:
        return True
    return any(map(_is_unsafe_name, path.split("/")))


def _is_unsafe_name(name: str) -> bool:
    """Whether a system may shorten this name, or take it for something else."""
    if name in {"", "."}:
        return False
    if name != name.strip() or name.endswith("."):  # `..`, too
        return True
    return _DEVICES.fullmatch(name.partition(".")[0].rstrip()) is not None


def _reached(path: Path) -> Path:
    """What a path leads to, or will when it is created. Raises if it cannot be followed.

    `resolve` without `strict` takes a link for a plain name where it fails to read it.
    """
    missing: list[str] = []
    while True:
        try:
            return path.resolve(strict=True).joinpath(*reversed(missing))
        except FileNotFoundError:
            if path.is_symlink():  # writing to it would create what it leads to
                raise
        missing.append(path.name)
        path = path.parent


def _is_inside(path: tuple[str, ...], folder: tuple[str, ...]) -> bool:
    return path[: len(folder)] == folder


def _folded(path: Path) -> tuple[str, ...]:
    return tuple([unicodedata.normalize("NFKC", part).casefold() for part in path.parts])
