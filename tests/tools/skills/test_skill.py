"""The format of a skill: what is valid loads, and all that is not is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ferrule.errors import ToolDefinitionError, ToolError
from ferrule.tools.skills.skill import MOST_TEXT_BYTES, find_skills, read_skill

pytest.importorskip("yaml", reason="skills need PyYAML")

HEAD = "---\nname: {name}\ndescription: Does it. Use it when asked.\n---\n"


def skill_in(folder: Path, name: str = "pay-bills", text: str | None = None) -> Path:
    place = folder / name
    place.mkdir(parents=True)
    text = HEAD.format(name=name) + "# How\n\nPay.\n" if text is None else text
    (place / "SKILL.md").write_text(text, encoding="utf-8")
    return place


def headed(fields: str) -> str:
    return f"---\n{fields}\n---\nText."


VALID = {
    "minimal": "name: pay-bills\ndescription: Does it.",
    "all fields": (
        "name: pay-bills\ndescription: >\n  Does it:\n  well.\nlicense: MIT\n"
        "compatibility: Needs git\nallowed-tools: Bash(git:*) Read\n"
        'metadata:\n  author: a\n  version: "1.0"'
    ),
    "numbers are texts": "name: pay-bills\ndescription: 7",
    "quoted": 'name: "pay-bills"\ndescription: "Does it: well. # not a comment"',
}
INVALID = {
    "no name": ("description: Does it.", "`name` is missing"),
    "no description": ("name: pay-bills", "`description` is missing"),
    "an empty description": ('name: pay-bills\ndescription: ""', "`description` must be text"),
    "a long description": (f"name: pay-bills\ndescription: {'x' * 1025}", "1025 characters"),
    "a long name": (f"name: {'x' * 65}\ndescription: d", "65 characters"),
    "another folder": ("name: pay\ndescription: d", "that of its folder"),
    "capitals": ("name: Pay-Bills\ndescription: d", "lowercase"),
    "two hyphens": ("name: pay--bills\ndescription: d", "single hyphens"),
    "a hyphen at its end": ("name: pay-bills-\ndescription: d", "single hyphens"),
    "signs": ("name: pay_bills\ndescription: d", "lowercase letters, digits"),
    "unknown fields": ("name: pay-bills\ndescription: d\nversion: 1", "unknown fields: version"),
    "a list": ("name: pay-bills\ndescription: [a, b]", "`description` must be text"),
    "long compatibility": (
        f"name: pay-bills\ndescription: d\ncompatibility: {'x' * 501}",
        "501 characters",
    ),
    "metadata that is no map": ("name: pay-bills\ndescription: d\nmetadata: x", "map of texts"),
    "a field twice": ("name: pay-bills\nname: pay-bills\ndescription: d", "each field once"),
    "bad YAML": ("name: pay-bills\ndescription: a: b: c", "not valid YAML"),
    "a tab": ("name: pay-bills\n\tdescription: d", "not valid YAML"),
    "no map": ("- a\n- b", "`name` and `description`"),
    "an object of Python": (
        "name: pay-bills\ndescription: !!python/object/apply:os.system [x]",
        "`description` must be text",
    ),
}


@pytest.mark.parametrize("fields", VALID.values(), ids=VALID)
def test_a_valid_skill_loads(tmp_path: Path, fields: str) -> None:
    skill = read_skill(skill_in(tmp_path, text=headed(fields)))
    assert skill.name == "pay-bills"
    assert skill.description
    assert skill.main_file == "SKILL.md"


@pytest.mark.parametrize(("fields", "says"), INVALID.values(), ids=INVALID)
def test_an_invalid_skill_is_refused_with_what_is_wrong(
    tmp_path: Path, fields: str, says: str
) -> None:
    with pytest.raises(ToolDefinitionError) as refusal:
        read_skill(skill_in(tmp_path, text=headed(fields)))
    assert says in str(refusal.value)


# The library takes any `metadata`; its specification says that it is a map.
_COMPARED = {name: fields for name, (fields, _) in INVALID.items() if "is no map" not in name}


@pytest.mark.parametrize("fields", [*VALID.values(), *_COMPARED.values()])
def test_the_reference_library_agrees(tmp_path: Path, fields: str) -> None:
    skills_ref = pytest.importorskip("skills_ref", reason="pip install skills-ref")
    place = skill_in(tmp_path, text=headed(fields))
    try:
        read_skill(place)
    except ToolDefinitionError:
        is_valid = False
    else:
        is_valid = True
    assert is_valid == (not skills_ref.validate(place))


def test_all_problems_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(ToolDefinitionError) as refusal:
        read_skill(skill_in(tmp_path, text=headed("name: No\nversion: 1")))
    assert str(refusal.value).count("\n- ") == 4


@pytest.mark.parametrize("text", ["", "# No head", "---\nname: x", "----\nname: x\n----\n"])
def test_a_file_without_a_head_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ToolDefinitionError, match="begins with"):
        read_skill(skill_in(tmp_path, text=text))


def test_line_ends_and_marks_of_windows_are_read(tmp_path: Path) -> None:
    place = skill_in(tmp_path)
    text = "\ufeff" + HEAD.format(name="pay-bills") + "Text."
    (place / "SKILL.md").write_bytes(text.replace("\n", "\r\n").encode())
    assert read_skill(place).description == "Does it. Use it when asked."


def test_names_in_other_letters_are_compared_as_unicode_writes_them(tmp_path: Path) -> None:
    skill = read_skill(skill_in(tmp_path, "prüfung"))
    assert skill.name == "prüfung"


def test_a_text_that_is_too_large_or_not_utf8_is_refused(tmp_path: Path) -> None:
    place = skill_in(tmp_path)
    (place / "SKILL.md").write_bytes(b"---\nname: \xff\n---\n")
    with pytest.raises(ToolDefinitionError, match="UTF-8"):
        read_skill(place)
    (place / "SKILL.md").write_bytes(b"x" * (MOST_TEXT_BYTES + 1))
    with pytest.raises(ToolDefinitionError, match="bytes"):
        read_skill(place)


def test_a_folder_is_a_skill_or_has_skills(tmp_path: Path) -> None:
    skill_in(tmp_path / "all", "b-skill")
    skill_in(tmp_path / "all", "a-skill")
    (tmp_path / "all" / "notes").mkdir()
    assert [skill.name for skill in find_skills(tmp_path / "all")] == ["a-skill", "b-skill"]
    assert [skill.name for skill in find_skills(tmp_path / "all" / "a-skill")] == ["a-skill"]
    with pytest.raises(ToolDefinitionError, match="no folder"):
        find_skills(tmp_path / "none")
    with pytest.raises(ToolDefinitionError, match="has no skill"):
        find_skills(tmp_path / "all" / "notes")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_that_leads_out_is_refused_and_one_inside_is_read(tmp_path: Path) -> None:
    place = skill_in(tmp_path)
    (place / "again.md").symlink_to(place / "SKILL.md")
    assert "again.md" in read_skill(place).files
    (tmp_path / "secret").write_text("s")
    (place / "out.md").symlink_to(tmp_path / "secret")
    with pytest.raises(ToolDefinitionError, match="leads out"):
        read_skill(place)
    (place / "out.md").unlink()
    (place / "out").symlink_to(tmp_path)
    with pytest.raises(ToolDefinitionError, match="leads out"):
        read_skill(place)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_made_later_leads_nowhere(tmp_path: Path) -> None:
    place = skill_in(tmp_path)
    skill = read_skill(place)
    (tmp_path / "secret").write_text("s")
    (place / "out.md").symlink_to(tmp_path / "secret")
    with pytest.raises(ToolError, match="has no file"):
        skill.read("out.md")


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "a/../../secret",
        "/etc/passwd",
        "..\\secret",
        "C:\\x",
        "",
        ".",
        "a\0b",
        ".git/x",
        "no.md",
    ],
)
def test_a_path_stays_inside_the_skill(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("s")
    skill = read_skill(skill_in(tmp_path))
    with pytest.raises(ToolError, match="has no file"):
        skill.read(path)


def test_hidden_files_are_not_a_part_of_a_skill(tmp_path: Path) -> None:
    place = skill_in(tmp_path)
    (place / ".git").mkdir()
    (place / ".git" / "config").write_text("x")
    (place / "__pycache__").mkdir()
    (place / "__pycache__" / "x.pyc").write_text("x")
    assert [*read_skill(place).files] == ["SKILL.md"]
