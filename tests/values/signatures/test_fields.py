"""Keywords of fields: known ones, misspelled ones, and others."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from ferrule.errors import SignatureError
from ferrule.values.signatures.signature import InputField, OutputField


@pytest.mark.parametrize(
    ("declare", "wrong", "says"),
    [
        (InputField, "defualt", "`InputField` has no keyword `defualt`: did you mean `default`"),
        (OutputField, "dsc", "`OutputField` has no keyword `dsc`: did you mean `desc`"),
        (InputField, "prefx", "did you mean `prefix`"),
        (OutputField, "max_lenght", "did you mean `max_length`"),
    ],
)
def test_a_misspelled_keyword_is_refused_with_the_one_that_is_meant(
    declare: Any,
    wrong: str,
    says: str,
) -> None:
    """It was dropped without a word."""
    with pytest.raises(SignatureError, match=says):
        declare(**{wrong: "x"})


def test_other_keywords_are_taken_as_in_dspy() -> None:
    """Programs that come from DSPy have them."""
    given: dict[str, Any] = {
        "prefix": "P:",
        "format": str,
        "parser": int,
        "json_schema_extra": {"a": 1},
        "title": "T",
        "ge": 1,
    }
    assert InputField(1, desc="d", **given).json_schema_extra["prefix"] == "P:"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic's, that it drops the keyword
        assert OutputField(colour="red").json_schema_extra["ferrule_role"] == "output"
