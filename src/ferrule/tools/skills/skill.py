"""`Skill`: one skill, a folder with a `SKILL.md`, in the format of agentskills.io.

The file begins with YAML between two lines `---`: `name` and `description`, and perhaps `license`,
`compatibility`, `metadata` and `allowed-tools`. The text after it is for the model. Everything that
the specification requires is checked here, as in its reference library `skills-ref`: otherwise a
mistake would show only in a model that does not use the skill.

A skill cannot reach outside its folder: paths with `..` and links that lead out are refused.
`allowed-tools` is read and grants nothing: what a file says about itself is not consent.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import unicodedata
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ferrule.errors import ToolDefinitionError, ToolError, importing, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger("ferrule.tools")
NAMES_OF_FILE = ("SKILL.md", "skill.md")
_FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
_MOST_NAME, _MOST_DESCRIPTION, _MOST_COMPATIBILITY = 64, 1024, 500
MOST_TEXT_BYTES = 1_000_000
"""The largest file of a skill that a model reads."""
_MOST_FILES = 10_000
_MOST_BYTES = 500_000_000
"""The largest skill, all files together: they are read when it is loaded, for their digests."""
_CHUNK_BYTES = 1 << 20
_HEAD = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


class Skill(Struct, frozen=True):
    """One skill."""

    name: str
    description: str
    """What it does, and when to use it: all that a model knows of it before it reads the text."""
    folder: Path
    """Its folder, without links."""
    license: str = ""
    compatibility: str = ""
    """What it needs on the machine, in words."""
    allowed_tools: str = ""
    """The tools that the skill wants to be approved for. It grants nothing."""
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, str] = field(default_factory=dict[str, str])
    """The digest that each of its files had when it was loaded, by path inside the folder."""

    @property
    def main_file(self) -> str:
        """The name of its `SKILL.md`."""
        return next(name for name in NAMES_OF_FILE if name in self.files)

    @property
    def scripts(self) -> list[str]:
        """The files in its folder `scripts`."""
        return [name for name in self.files if name.startswith("scripts/")]

    def path_of(self, name: str) -> Path:
        """The path of one of its files, as it is now.

        Raises `ToolError`, which a model reads, for a path that does not lead to a file inside.
        """
        parts = PurePosixPath(name.replace("\\", "/")).parts
        # Not `..`, nothing hidden, no root, no drive of Windows.
        leads_out = any(part.startswith(("/", ".")) or ":" in part for part in parts)
        if parts and not leads_out and "\0" not in name:
            path = self.folder.joinpath(*parts).resolve()
            if path.is_relative_to(self.folder) and path.is_file():
                return path
        listed = ", ".join(list(self.files)[:100])
        raise ToolError(
            f"The skill {self.name!r} has no file {shown(name)}. Give a path inside the skill; "
            f"its files are: {listed}."
        )

    def read(self, name: str) -> bytes:
        """The content of one of its files, which a model may read.

        Raises `ToolError` for one that is too large.
        """
        path = self.path_of(name)
        size = path.stat().st_size
        if size > MOST_TEXT_BYTES:
            raise ToolError(
                f"The file {name!r} of the skill {self.name!r} has {size} bytes, and at most "
                f"{MOST_TEXT_BYTES} can be read. Use a script of the skill that reads it."
            )
        return path.read_bytes()


def find_skills(place: str | Path, *, skip_invalid: bool = False) -> list[Skill]:
    """The skills in a folder: the folder itself, or those of its folders that have a `SKILL.md`.

    Raises `ToolDefinitionError` if there is none, and for an invalid skill. With `skip_invalid`,
    invalid skills are left out with a warning, if the folder is not a skill itself.
    """
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise ToolDefinitionError(
            f"`skills` is a folder with skills; there is no folder {str(folder)!r}."
        )
    if _is_skill(folder):
        return [read_skill(folder)]
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and _is_skill(path))
    if not inner:
        raise ToolDefinitionError(
            f"The folder {str(folder)!r} has no skill: neither it nor a folder in it has a "
            "`SKILL.md`."
        )
    skills: list[Skill] = []
    for path in inner:
        try:
            skills.append(read_skill(path))
        except ToolDefinitionError as error:
            if not skip_invalid:
                raise
            _log.warning("A skill was left out. %s", error)
    return skills


def read_skill(folder: Path) -> Skill:
    """Read one skill. Raises `ToolDefinitionError`, which names everything that is wrong."""
    name_of_folder = folder.absolute().name
    root = folder.resolve()
    files = {
        path: digest_of_file(root.joinpath(*PurePosixPath(path).parts))
        for path in _files_in(root, folder)
    }
    name_of_file = next((name for name in NAMES_OF_FILE if name in files), None)
    if name_of_file is None:
        raise ToolDefinitionError(f"The skill {str(folder)!r} has no `SKILL.md`.")
    head, _ = split_text(_text_of(root / name_of_file), str(folder / name_of_file))
    values = _read_head(head, str(folder / name_of_file))
    problems = list(_problems(values, name_of_folder))
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise ToolDefinitionError(
            f"The skill {str(folder)!r} does not have the format of agentskills.io:{listed}"
        )
    return Skill(
        name=_normalized(values["name"]),
        description=values["description"].strip(),
        folder=root,
        license=values.get("license", ""),
        compatibility=values.get("compatibility", ""),
        allowed_tools=values.get("allowed-tools", ""),
        metadata=values.get("metadata", {}),
        files=files,
    )


def split_text(text: str, where: str) -> tuple[str, str]:
    """The head of a `SKILL.md`, and the text after it."""
    match = _HEAD.match(text)
    if match is None:
        raise ToolDefinitionError(
            f"{where!r} begins with `name` and `description` in YAML between two lines `---`; "
            f"found {shown(text[:80])}."
        )
    return match[1], text[match.end() :].strip()


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


# -- the files


def _is_skill(folder: Path) -> bool:
    return any((folder / name).is_file() for name in NAMES_OF_FILE)


def _files_in(root: Path, folder: Path) -> list[str]:
    """The paths of the files in a skill, without hidden ones."""
    paths: list[str] = []
    size = 0
    for path in _walk(root, folder):
        size += path.stat().st_size
        paths.append(path.relative_to(root).as_posix())
        if len(paths) > _MOST_FILES or size > _MOST_BYTES:
            raise ToolDefinitionError(
                f"The skill {str(folder)!r} is too large: it may have {_MOST_FILES} files with "
                f"{_MOST_BYTES} bytes in all."
            )
    return sorted(paths)


def _walk(root: Path, folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for name in (*folders, *names):
            path = Path(place, name)
            if _is_hidden(name):
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise ToolDefinitionError(
                    f"The skill {str(folder)!r} has a link that leads out of its folder: "
                    f"{path.relative_to(root).as_posix()!r}. Put the file itself there."
                )
            if path.is_file():
                yield path


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _text_of(path: Path) -> str:
    size = path.stat().st_size
    if size > MOST_TEXT_BYTES:
        raise ToolDefinitionError(
            f"{str(path)!r} has {size} bytes; a `SKILL.md` may have {MOST_TEXT_BYTES}. Move "
            "parts of it to files that it names."
        )
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ToolDefinitionError(f"{str(path)!r} is not UTF-8 text: {error}.") from None


# -- the head


def _read_head(head: str, where: str) -> dict[str, Any]:
    """The fields of a head: texts, as in `skills-ref`, except the map `metadata`."""
    with importing("Skills need PyYAML: pip install 'ferrule[skills]'."):
        yaml = import_module("yaml")
    try:
        node = yaml.compose(head, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ToolDefinitionError(
            f"The head of {where!r} is not valid YAML: {error}. A text with a colon needs quotes."
        ) from None
    if not isinstance(node, yaml.MappingNode):
        raise ToolDefinitionError(
            f"The head of {where!r} has `name` and `description`; found {shown(head)}."
        )
    values: dict[str, Any] = {}
    for key, value in _pairs(node, where):
        values[key] = value.value
        if isinstance(value, yaml.MappingNode) and key == "metadata":
            values[key] = {name: str(item.value) for name, item in _pairs(value, where)}
    return values


def _pairs(node: Any, where: str) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for key, value in node.value:
        name = key.value
        if not isinstance(name, str) or name in seen:
            raise ToolDefinitionError(
                f"The head of {where!r} has each field once, under a name; found {shown(name)}."
            )
        seen.add(name)
        yield name, value


def _normalized(name: str) -> str:
    return unicodedata.normalize("NFKC", name.strip())


def _problems(values: dict[str, Any], name_of_folder: str) -> Iterator[str]:
    unknown = [name for name in values if name not in _FIELDS]
    if unknown:
        yield (
            f"unknown fields: {', '.join(unknown)}. Put your own fields under `metadata`; the "
            f"others are {', '.join(_FIELDS)}"
        )
    yield from _problems_of_text(values, "name", _MOST_NAME, required=True)
    yield from _problems_of_text(values, "description", _MOST_DESCRIPTION, required=True)
    yield from _problems_of_text(values, "compatibility", _MOST_COMPATIBILITY)
    for name in ("license", "allowed-tools"):
        if not isinstance(values.get(name, ""), str):
            yield f"`{name}` must be text"
    if not isinstance(values.get("metadata", {}), dict):
        yield "`metadata` must be a map of texts"
    if isinstance(values.get("name"), str):
        yield from _problems_of_name(_normalized(values["name"]), name_of_folder)


def _problems_of_text(
    values: dict[str, Any], name: str, most: int, *, required: bool = False
) -> Iterator[str]:
    value = values.get(name)
    if value is None:
        if required:
            yield f"`{name}` is missing"
        return
    if not isinstance(value, str) or not value.strip():
        yield f"`{name}` must be text that is not empty"
    elif len(value) > most:
        yield f"`{name}` has {len(value)} characters, and may have {most}"


def _problems_of_name(name: str, name_of_folder: str) -> Iterator[str]:
    are_allowed = all(character.isalnum() or character == "-" for character in name)
    if name != name.lower() or not are_allowed:
        yield f"`name` may have only lowercase letters, digits and hyphens; found {name!r}"
    if name.startswith("-") or name.endswith("-") or "--" in name:
        yield f"`name` may have only single hyphens between other characters; found {name!r}"
    if unicodedata.normalize("NFKC", name_of_folder) != name:
        yield f"`name` must be that of its folder, {name_of_folder!r}; found {name!r}"
