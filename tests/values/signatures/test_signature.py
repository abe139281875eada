"""Signatures: classes, changes, checks, comparison."""

from __future__ import annotations

import copy
import gc
import json
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, Optional, Protocol, Self

import pytest
from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from ferrule.adapters.chat import ChatAdapter
from ferrule.errors import InputError, SignatureError
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import Image as Picture
from ferrule.values.signatures.signature import InputField, OutputField, Signature, as_signature


class Point(BaseModel):
    x: int
    y: int = 0


class QA(Signature):
    """Answer the question.

    Be brief.
    """

    question: str = InputField(desc="what is asked")
    k: int = InputField(3, description="how many", ge=1)
    hints = InputField(default_factory=list)
    answer: list[str] = OutputField(desc="the answers", max_length=2)
    point: Point = OutputField()


def test_a_class_tells_instructions_and_fields() -> None:
    assert QA.instructions == "Answer the question.\n\nBe brief."
    assert list(QA.fields) == ["question", "k", "hints", "answer", "point"]
    assert list(QA.input_fields) == ["question", "k", "hints"]
    assert list(QA.output_fields) == ["answer", "point"]
    assert QA.signature == "question, k, hints -> answer, point"
    assert QA.input_fields["question"].description == "what is asked"
    assert QA.input_fields["question"].json_schema_extra["desc"] == "what is asked"
    assert QA.input_fields["k"].description == "how many"
    assert QA.input_fields["hints"].annotation is str


def test_a_signature_of_a_signature_is_that_signature_or_one_with_other_instructions() -> None:
    assert Signature(QA) is QA
    other = Signature(QA, "Be long.")
    assert (other.instructions, other.fields.keys(), QA.instructions) == (
        "Be long.",
        QA.fields.keys(),
        "Answer the question.\n\nBe brief.",
    )


def test_without_a_docstring_the_fields_are_the_instruction() -> None:
    assert (
        Signature("a, b -> c").instructions == "Given the fields `a`, `b`, produce the fields `c`."
    )
    assert Signature("-> c").instructions == "Produce the fields `c`."
    assert Signature("a -> b", "").instructions == ""


def test_a_subclass_inherits_fields_and_instruction() -> None:
    class More(QA):
        score: float = OutputField()

    assert More.signature == "question, k, hints -> answer, point, score"
    assert More.instructions == QA.instructions


def test_types_of_a_function_are_found_though_annotations_are_text() -> None:
    """This file's annotations are text, `Local` is local."""

    class Local(BaseModel):
        n: int

    class Uses(Signature):
        text: str = InputField()
        local: Local = OutputField()

    assert Uses.check_output("local", '{"n": 1}') == Local(n=1)


def test_a_field_may_have_the_name_of_what_a_signature_tells() -> None:
    """Its default is kept; methods, and what is inherited, are another matter."""

    class Made(Signature):
        instructions: str = InputField("be nice", desc="d")
        plan: str = OutputField()

    assert Made.defaults == {"instructions": "be nice"}
    assert Made.instructions == "Given the fields `instructions`, produce the fields `plan`."
    with pytest.raises(SignatureError, match=r"'fields'.*uses the name"):

        class Below(Made):
            fields: str = OutputField()


@pytest.mark.parametrize(
    "name",
    [
        "json",
        "schema",
        "copy",
        "dict",
        "validate",
        "construct",
        "instructions",
        "signature",
        "fields",
        "input_fields",
        "self_",
    ],
)
def test_ordinary_words_are_names_of_fields(name: str) -> None:
    """Ours; D14's spirit: no warning, no shadowing."""
    made = Signature(f"{name} -> answer_{name}")
    assert list(made.fields) == [name, f"answer_{name}"]
    assert made.check_inputs({name: "x"}) == {name: "x"}
    other = Signature(f"question -> {name}")
    assert getattr(other.model_construct(**{name: 5}), name) == 5


def test_outputs_are_typed_attributes_of_an_instance() -> None:
    """Usable as a pydantic model."""
    found = QA.model_construct(answer=["a"], point=Point(x=1))
    assert (found.answer, found.point.x) == (["a"], 1)
    assert QA(question="q", answer=["a"], point={"x": 1}).point == Point(x=1)


def test_mistakes_in_a_class_name_the_field() -> None:
    with pytest.raises(SignatureError, match=r"`Bare.question` is neither"):

        class Bare(Signature):
            question: str
            answer: str = OutputField()

    with pytest.raises(
        SignatureError,
        match=r"a subclass of `Signature`, .* found <class '.*Point'>",
    ):
        Signature(Point)  # "A signature is a class", said the error

    with pytest.raises(SignatureError, match="no outputs"):

        class NoOutputs(Signature):
            question: str = InputField()

    with pytest.raises(SignatureError, match=r"'_hidden'.*underscore"):

        class Hidden(Signature):
            _hidden: str = InputField()
            answer: str = OutputField()

    with pytest.raises(SignatureError, match="'model_dump'"):

        class Reserved(Signature):
            model_dump: str = InputField()
            answer: str = OutputField()

    with pytest.raises(SignatureError, match=r"`Valued` is not a valid signature.*number"):

        class Valued(Signature):
            number = 5
            answer: str = OutputField()

    class Unknown(Signature):
        thing: Nowhere = InputField()  # noqa: F821
        answer: str = OutputField()

    with pytest.raises(SignatureError, match="`thing` contains an undefined name"):
        _ = Unknown.input_fields


def test_desc_and_description_are_one_thing() -> None:
    """Architecture, names: `desc` is the field, the other an alias."""
    assert InputField(desc="a").description == InputField(description="a").description == "a"
    with pytest.raises(SignatureError, match="one of `desc` and `description`"):
        InputField(desc="a", description="b")
    with pytest.raises(SignatureError, match="must be a string"):
        OutputField(desc=5)


def test_class_variables_and_annotated_fields_are_understood() -> None:
    class Odd(Signature):
        KIND: ClassVar[str] = "x"
        question: Annotated[str, InputField(desc="d")]
        answer: Annotated[int, Field(ge=2)] = OutputField(le=5)

    assert Odd.input_fields["question"].description == "d"
    for wrong in ("1", "6"):
        with pytest.raises(ValueError, match=r"greater|less"):
            Odd.check_output("answer", wrong)


def test_two_outputs_for_calls_are_refused() -> None:
    with pytest.raises(SignatureError, match="one"):
        Signature(
            {
                "q": InputField(),
                "a": (ToolCalls, OutputField()),
                "b": (list[ToolCalls], OutputField()),
            },
        )


@pytest.mark.parametrize(
    "kind",
    [list[ToolCalls], dict[str, ToolCalls], ToolCalls | str, list[ToolCalls] | None],
    ids=range(4),
)
def test_an_output_for_calls_holds_all_of_them(kind: Any) -> None:
    """`ToolCalls`, or that or None."""
    with pytest.raises(SignatureError, match=r"`ToolCalls` or `ToolCalls \| None`"):
        Signature({"q": InputField(), "calls": (kind, OutputField())})
    for fine in (ToolCalls, ToolCalls | None, Optional[ToolCalls]):
        assert (
            Signature({"q": InputField(), "calls": (fine, OutputField())}).signature == "q -> calls"
        )


def test_a_name_stands_once_among_inputs_and_outputs() -> None:
    """Also for tools and their calls."""
    with pytest.raises(SignatureError, match="`calls` appears as an input and as an output"):
        Signature("q, calls: list[str] -> calls: ToolCalls")
    with pytest.raises(SignatureError, match="already"):
        Signature("q, tools -> answer").append("tools", OutputField(), ToolCalls)


# -- changing


def test_fields_are_added_at_their_place_and_the_original_stays() -> None:
    made = Signature("a, b -> c", "do")
    assert made.append("d", OutputField(), int).signature == "a, b -> c, d"
    assert made.append("d", InputField()).signature == "a, b, d -> c"
    assert made.prepend("d", OutputField(desc="x"), int).signature == "a, b -> d, c"
    assert made.insert(1, "d", InputField()).signature == "a, d, b -> c"
    assert made.insert(-1, "d", InputField()).signature == "a, b, d -> c"
    assert made.insert(-2, "d", InputField()).signature == "a, d, b -> c"
    assert made.delete("a").signature == "b -> c"
    assert made.delete("c").signature == "a, b -> "
    assert made.delete("a", "b", "c").fields == {}
    assert made.signature == "a, b -> c"
    assert made.append("d", OutputField()).instructions == "do"
    assert made.with_instructions("other").instructions == "other"
    assert made.append_instructions("more").instructions == "do\n\nmore"
    assert (
        Signature("a -> b").append("c", OutputField()).instructions
        == "Given the fields `a`, produce the fields `b`, `c`."
    )


def test_instructions_may_hold_a_lone_surrogate() -> None:
    """Python accepts none in a docstring; the instructions have it, and the requests of models
    escape it.
    """
    made = Signature("a -> b", "do \ud800").append_instructions("more")
    assert made.instructions == "do \ud800\n\nmore"
    assert made.__doc__ == "do \\ud800\n\nmore"
    assert pickle.loads(pickle.dumps(made)) == made


def test_changes_keep_constraints_defaults_and_descriptions() -> None:
    made = QA.append("extra", OutputField(), str).delete("point").prepend("first", InputField())
    assert made.defaults == {"k": 3, "hints": []}
    with pytest.raises(InputError, match="greater than or equal to 1"):
        made.check_inputs({"first": "x", "question": "q", "k": 0})
    with pytest.raises(ValueError, match="at most 2"):
        made.check_output("answer", ["a", "b", "c"])
    changed = made.with_updated_fields("answer", set[str], desc="new").with_updated_fields(
        "k",
        default=7,
    )
    assert changed.output_fields["answer"].description == "new"
    assert changed.check_output("answer", '["a", "a"]') == {"a"}
    assert changed.defaults["k"] == 7


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Pets(Signature):
    first: Cat | Dog = InputField(discriminator="kind")
    second: Cat | Dog | None = OutputField(discriminator="kind")


@pytest.mark.parametrize(
    "made",
    [
        Pets,
        Signature(
            {
                "first": (Cat | Dog, InputField(discriminator="kind")),
                "second": (Cat | Dog, OutputField(discriminator="kind")),
            },
        ),
        Pets.append("note", OutputField()).with_updated_fields("second", desc="the other one"),
        Pets.with_updated_fields(
            "second",
            Annotated[Cat | Dog, Field(discriminator=Discriminator("kind"))],
        ),
    ],
    ids=["class", "mapping", "changed", "annotated"],
)
def test_a_discriminator_chooses_the_model_of_a_union(made: type[Signature]) -> None:
    """It had no effect: an error named every model, and the schema lacked it."""
    with pytest.raises(InputError, match=r"`first` dog\.name: Field required\."):
        made.check_inputs({"first": {"kind": "dog"}})
    with pytest.raises(ValueError, match=r"^dog\.name: Field required$"):
        made.check_output("second", {"kind": "dog"})
    assert made.check_output("second", '{"kind": "cat"}') == Cat(kind="cat")
    assert '"discriminator"' in json.dumps(made.plan.output_schema())
    assert made == made.with_instructions(made.instructions)


IMPOSSIBLE: dict[str, tuple[Any, str]] = {
    "a name that is taken": (lambda made: made.append("a", InputField()), "`a`"),
    "no field": (lambda made: made.append("x", 5), "`x`"),
    "a field without a role": (lambda made: made.append("x", Field()), "`x`"),
    "no name": (lambda made: made.append("x y", InputField()), "'x y'"),
    "no such place": (lambda made: made.insert(9, "x", InputField()), "`x`"),
    "deleting what is not there": (lambda made: made.delete("nope"), "`nope`"),
    "updating what is not there": (lambda made: made.with_updated_fields("nope", int), "`nope`"),
    "instructions that are no text": (lambda made: made.with_instructions(5), "5"),
    "the state of another signature": (
        lambda made: made.load_state({"fields": [{"name": "z"}]}),
        "`z`",
    ),
    "a mapping to no field": (lambda _: Signature({"a": 5}), "`a`"),
    "a mapping to three": (lambda _: Signature({"a": (str, InputField(), 1)}), "`a`"),
    "a number": (lambda _: Signature(5), "5"),
    "the root itself": (lambda _: as_signature(Signature), "no fields"),
    "instructions of another type": (lambda _: Signature("a -> b", 5), "5"),
}


@pytest.mark.parametrize(("change", "name"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_changes_are_told_with_the_name(change: Any, name: str) -> None:
    with pytest.raises(SignatureError, match=name):
        change(Signature("a -> b"))


def test_equality_is_by_content() -> None:
    class Same(Signature):
        """do"""

        a: str = InputField()
        b: int = OutputField(ge=1)

    class Other(Signature):
        """do"""

        a: str = InputField()
        b: int = OutputField(ge=2)

    made = Signature("a -> b: int", "do").with_updated_fields("b", Annotated[int, Field(ge=1)])
    assert made == Same
    assert hash(made) == hash(Same)
    assert made.equals(Same)
    assert Same != Other
    assert Same != Same.with_instructions("else")
    assert Same != Same.with_updated_fields("a", desc="x")
    assert {Same: 1}[made] == 1
    assert Same != 5
    assert as_signature(Same) is Same
    assert as_signature("a -> b") == Signature("a -> b")
    assert copy.deepcopy(Same) is Same


def test_a_dumped_state_comes_back() -> None:
    state = QA.with_instructions("new").with_updated_fields("question", desc="asked").dump_state()
    loaded = QA.load_state(state)
    assert loaded.instructions == "new"
    assert loaded.input_fields["question"].description == "asked"
    assert loaded.check_inputs({"question": "q"})["k"] == 3
    assert loaded == QA.load_state(loaded.dump_state())
    untyped = Signature("a -> b")
    assert untyped.load_state(untyped.dump_state()).check_inputs({"a": object})


# -- checking


def test_all_wrong_inputs_are_told_at_once() -> None:
    with pytest.raises(InputError) as raised:
        Signature(
            "question, n: int, point: Point -> answer",
            custom_types={"Point": Point},
        ).check_inputs({"qestion": 1, "n": "x", "answer": 2})
    text = str(raised.value)
    for part in (
        "`qestion` is unknown (did you mean `question`?)",
        "`question` is missing",
        "`n` ",
        "`point` is missing",
        "`answer` is an output",
    ):
        assert part in text
    assert "pydantic" not in text
    assert {name for name, _ in raised.value.problems} == {
        "qestion",
        "question",
        "n",
        "point",
        "answer",
    }
    with pytest.raises(InputError, match="mapping"):
        QA.check_inputs(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("limits", "set it with `context(limits=...)`"),
        ("store", "`program.start(...)` takes it"),
        ("run_id", "`program.start(...)` takes it"),
        ("thread_id", "`program.start(run_id=...)` names a run"),
        ("policy", "set it with `context(policy=...)`"),
        ("callbacks", "set it with `context(callbacks=...)`"),
        ("temperature", "`config={'temperature': ...}`"),
        ("message_history", "an input of the type `History`"),
        ("history", "an input of the type `History`"),
    ],
    ids=str,
)
def test_an_option_that_is_no_input_is_told_with_the_place_that_takes_it(
    name: str,
    said: str,
) -> None:
    with pytest.raises(InputError) as raised:
        QA.check_inputs({"question": "q", name: None})
    assert f"`{name}` is unknown (" in str(raised.value)
    assert said in str(raised.value)


def test_an_input_that_only_its_validator_refuses_is_told_when_the_outputs_are_checked() -> None:
    class Even(Signature):
        """Halve it."""

        number: int = InputField()
        half: int = OutputField()

        @field_validator("number")
        @classmethod
        def _is_even(cls, number: int) -> int:
            if number % 2:
                raise ValueError("must be even")
            return number

    assert Even.validate_outputs({"number": 2}, {"half": 1}) == {"half": 1}
    with pytest.raises(InputError, match=r"Wrong inputs for `Even`: `number` .*must be even"):
        Even.validate_outputs({"number": 3}, {"half": 1})


def test_wrong_inputs_of_a_signature_written_as_text_name_its_fields() -> None:
    with pytest.raises(
        InputError,
        match=r"Wrong inputs for `review, stars -> mood`: `reveiw` is unknown",
    ):
        Signature("review, stars: int -> mood").check_inputs({"reveiw": "good", "stars": 3})
    with pytest.raises(
        InputError,
        match=r"Pass the inputs of `review, stars -> mood` as a mapping",
    ):
        Signature("review, stars: int -> mood").check_inputs([])


def test_inputs_are_coerced_and_defaults_filled_in_afresh() -> None:
    first = QA.check_inputs({"question": "q", "k": "5"})
    assert first == {"question": "q", "k": 5, "hints": []}
    first["hints"].append("mine")
    assert QA.check_inputs({"question": "q"})["hints"] == []


def test_an_input_of_no_written_type_takes_anything() -> None:
    """String form."""
    thing = object()
    for value in (thing, None, b"", [1]):
        assert Signature("a -> b").check_inputs({"a": value}) == {"a": value}
    with pytest.raises(InputError, match=r"`a`.*string"):
        Signature("a: str -> b").check_inputs({"a": 5})


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


READ: list[tuple[Any, Any, Any]] = [
    (str, "plain", "plain"),
    (str, '"quoted"', '"quoted"'),
    (str, 5, "5"),
    (str, True, "true"),
    (int, "7", 7),
    (int, " 7 ", 7),
    (int, 7.0, 7),
    (float, "1.5", 1.5),
    (bool, "true", True),
    (bool, "False", False),
    (list[str], '["a"]', ["a"]),
    (list[str], "['a', 'b',]", ["a", "b"]),
    (list[str], '```json\n["a"]\n```', ["a"]),
    (dict[str, Any], "{'a': None}", {"a": None}),
    (dict[str, Any], '{"a": {"b": [1]}}', {"a": {"b": [1]}}),
    (Point, '{"x": "1"}', Point(x=1)),
    (Point, {"x": 1, "y": 2}, Point(x=1, y=2)),
    (list[Point], [{"x": 1}], [Point(x=1)]),
    (Literal["yes", "no"], "yes", "yes"),
    (Literal["yes", "no"], '"yes"', "yes"),
    (Literal["yes", "no"], "`Yes`.", "yes"),
    (Literal["1", "2"], "1", "1"),
    (Literal[1, 2], "1", 1),
    (Colour, "red", Colour.RED),
    (Colour, '"blue"', Colour.BLUE),
    (str | None, "null", None),
    (str | None, "word", "word"),
    (str | None, "{'a': 1}", "{'a': 1}"),
    (int | None, "null", None),
    (Any, "words", "words"),
    (Any, "7", 7),
    (Any, "{'a': 1,}", {"a": 1}),
    (Any, "[note] to self", "[note] to self"),
    (Any, "null", None),
    (tuple[int, int], "[1, 2]", (1, 2)),
    (set[int], [1, 1], {1}),
    (dict[str, str], '{"a": "&lt;"}', {"a": "&lt;"}),
    (list[str], "[&quot;a&quot;]", ["a"]),
    (list[str], '["\ud800"]', ["\ud800"]),
]


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    READ,
    ids=[f"{kind} of {value!r}" for kind, value, _ in READ],
)
def test_outputs_are_read_from_values_and_from_text(kind: Any, value: Any, found: Any) -> None:
    """Typed outputs, after repair."""
    made = Signature({"q": InputField(), "a": (kind, OutputField())})
    got = made.check_output("a", value)
    assert got == found
    assert type(got) is type(found)


UNFIT: list[tuple[Any, Any, Any]] = [
    (str, None, "text, got null"),
    (str, {"a": 1}, "text, got an object"),
    (str, ["a"], "text, got an array"),
    (int, "seven", "integer.*'seven'"),
    (int, None, "integer"),
    (int, True, "number, got True"),
    (int, "true", "number"),
    (float, "", "number"),
    (Literal["yes", "no"], "maybe", "'yes' or 'no'.*'maybe'"),
    (Point, '{"y": 1}', "x: Field required"),
    (Point, '{"x": "a", "y": "b"}', "x: .*; y: "),
    (list[int], "[1, 'x', 'y']", "1: .*; 2: "),
    (list[int], "1, 2", "list"),
    (Annotated[str, Field(max_length=3)], "long", "at most 3"),
    (Annotated[int, Field(ge=1)], "0", "greater than or equal to 1"),
]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    UNFIT,
    ids=[f"{kind} of {value!r}" for kind, value, _ in UNFIT],
)
def test_outputs_that_do_not_fit_are_errors_a_model_can_read(
    kind: Any,
    value: Any,
    said: str,
) -> None:
    """Null is no text; constraints are enforced; no URL, no traceback."""
    with pytest.raises(ValueError, match=said) as raised:
        Signature({"q": InputField(), "a": (kind, OutputField())}).check_output("a", value)
    assert "http" not in str(raised.value)
    assert "ferrule" not in str(raised.value)


def test_an_unknown_output_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"`nope`.*answer"):
        QA.check_output("nope", 1)


def test_many_problems_of_one_value_are_cut_short() -> None:
    with pytest.raises(ValueError, match="and 92 more"):
        Signature("a -> b: list[int]").check_output("b", ["x"] * 100)


def test_the_schema_of_the_outputs_is_one_object() -> None:
    """D17; `finish` and shaped answers."""
    assert QA.output_schema() == {
        "type": "object",
        "properties": {
            "answer": {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": 2,
                "description": "the answers",
            },
            "point": {"$ref": "#/$defs/Point"},
        },
        "required": ["answer", "point"],
        "additionalProperties": False,
        "$defs": {
            "Point": {
                "type": "object",
                "title": "Point",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                "required": ["x"],
            },
        },
    }
    QA.output_schema()["properties"].clear()
    assert QA.output_schema()["properties"]
    assert Signature("a -> title: str").output_schema()["properties"] == {
        "title": {"type": "string"},
    }
    assert Signature("a -> b: str | None").output_schema()["required"] == []


def test_classes_of_one_name_are_told_apart_without_naming_ferrules_modules() -> None:
    """A schema is part of what a run's journal compares, and so must survive a move of ferrule's
    modules.
    """

    class Image(BaseModel):
        """A picture of the user's own."""

    class Two(Signature):
        mine: Image = OutputField()
        theirs: list[Picture] = OutputField()

    definitions = Two.output_schema()["$defs"]
    assert len(definitions) == 2
    assert "ferrule__Image" in definitions


def test_types_json_schema_cannot_say_are_left_open_there_and_checked_here() -> None:
    class Thing:
        pass

    made = Signature({"q": InputField(), "a": (Thing, OutputField()), "b": (int, OutputField())})
    assert made.output_schema()["properties"] == {"a": {}, "b": {"type": "integer"}}
    thing = Thing()
    assert made.check_output("a", thing) is thing
    with pytest.raises(ValueError, match="Thing"):
        made.check_output("a", "x")


def test_what_is_derived_is_made_once() -> None:
    """Performance, F1: validators built once."""
    made = Signature("a -> b")
    calls: list[int] = []
    assert (
        made.cached_value("k", lambda: calls.append(1) or "v")
        == made.cached_value("k", lambda: calls.append(1) or "w")
        == "v"
    )
    assert calls == [1]
    assert made.output_checks is made.output_checks
    assert made.cached_value("none", lambda: None) is None


def test_throwaway_signatures_are_freed() -> None:
    """Nothing outside keeps a signature."""
    import weakref

    made = Signature("a -> b").append("c", OutputField())
    assert ChatAdapter().parse(
        made,
        "[[ ## b ## ]]\nB\n\n[[ ## c ## ]]\nC\n\n[[ ## completed ## ]]",
    ) == {"b": "B", "c": "C"}
    seen = weakref.ref(made)
    del made
    gc.collect()
    assert seen() is None


def test_signatures_pickle_by_name_or_by_what_they_say():
    """A program with a text signature goes to another process."""
    made = Signature("question: str, k: int -> answer: list[int], note", "Think.").append(
        "more",
        InputField(default=3),
        int,
    )
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert (again.__name__, again.instructions, again.defaults) == (
        made.__name__,
        "Think.",
        {"more": 3},
    )
    assert again.check_inputs({"question": "q", "k": "2"}) == {"question": "q", "k": 2, "more": 3}
    assert pickle.loads(pickle.dumps(QA)) is QA


def test_fields_keep_their_written_order_with_and_without_types() -> None:
    class Mixed(Signature):
        first = InputField()
        second: int = InputField()
        third = InputField()
        output = OutputField()
        note: str = OutputField()
        last = OutputField()

    assert list(Mixed.model_fields) == ["first", "second", "third", "output", "note", "last"]
    assert Mixed.signature == "first, second, third -> output, note, last"


def test_annotations_apart_from_their_fields_keep_all_fields() -> None:
    class Apart(Signature):
        b: int
        a: int
        c = InputField()
        a = InputField()  # noqa: PIE794  annotated above
        b = InputField()  # noqa: PIE794  annotated above
        d = OutputField()

    assert {name: field.annotation for name, field in Apart.fields.items()} == {
        "c": str,
        "b": int,
        "a": int,
        "d": str,
    }


def test_an_input_without_a_type_takes_anything_in_a_class_as_in_text() -> None:
    class Bare(Signature):
        thing = InputField()
        answer = OutputField()

    value = [object()]
    assert Bare.check_inputs({"thing": value}) == {"thing": value}
    assert Bare.equals(Signature("thing -> answer", Bare.instructions))
    shared = InputField()
    signed = type(Signature)(
        "Signed",
        (Signature,),
        {"__module__": __name__, "__annotations__": {"x": int}, "x": shared, "y": OutputField()},
    )
    other = type(Signature)(
        "Other",
        (Signature,),
        {"__module__": __name__, "x": shared, "y": OutputField()},
    )
    assert other.check_inputs({"x": value}) == {"x": value}
    with pytest.raises(InputError):
        signed.check_inputs({"x": value})


def test_an_input_that_takes_none_may_be_left_out() -> None:
    class Maybe(Signature):
        limit: int | None = InputField()
        size: int | None = InputField(3)
        answer = OutputField()

    for made in (
        Maybe,
        Maybe.append("more", InputField(), str | None),
        Signature("limit: int | None, size: Optional[int] = 3 -> answer"),
    ):
        assert made.check_inputs({}) == {"limit": None, "size": 3} | (
            {"more": None} if "more" in made.input_fields else {}
        )
    with pytest.raises(InputError, match="`limit` should be a valid integer"):
        Maybe.check_inputs({"limit": "x"})


def test_a_derived_signature_keeps_the_methods_of_its_base():
    """Of a base without fields, as a library has one for all its signatures."""

    class Ours(Signature):
        names = classmethod(lambda cls: [*cls.output_fields])

    class Asked(Ours):
        question: str = InputField()
        answer: str = OutputField()

    assert Asked.names() == ["answer"]
    derived = Asked.append("reason", OutputField(), str)
    assert issubclass(derived, Ours)
    assert derived.names() == ["answer", "reason"]
    assert not issubclass(derived, Asked)


def test_an_input_that_gives_its_items_once_is_read_into_a_list() -> None:
    """A request is rendered anew for the fallback adapter: it would be asked about an empty list."""
    for kind in (None, Any, Iterable[int], Iterator[int], list[int]):
        made = Signature({"a": (kind, InputField()) if kind else InputField(), "b": OutputField()})
        assert made.check_inputs({"a": (each for each in (1, 2))}) == {"a": [1, 2]}
        assert made.check_inputs({"a": [1, 2]}) == {"a": [1, 2]}


def test_an_output_of_a_class_with_validators_is_a_list_where_it_is_an_iterable() -> None:
    class Even(Signature):
        question: str = InputField()
        numbers: Iterable[int] = OutputField()

        @model_validator(mode="after")
        def check(self) -> Self:
            return self

    assert Even.validate_outputs({"question": "q"}, {"numbers": [1, 2]}) == {"numbers": [1, 2]}


def test_a_type_that_pydantic_cannot_check_is_named_with_its_field() -> None:
    class Shape(Protocol):
        sides: int

    with pytest.raises(
        SignatureError,
        match=r"Field `a`: values of the type .*Shape.* cannot be checked",
    ):
        Signature({"a": (Shape, InputField()), "b": OutputField()}).check_inputs({"a": 1})
    for kind in (Shape, Self):
        with pytest.raises(
            SignatureError,
            match=r"Values of the type (Shape|.*Self) cannot be checked",
        ):
            ChatAdapter().format(
                Signature({"a": InputField(), "b": (kind, OutputField())}),
                [],
                {"a": 1},
            )


def test_a_field_that_a_dataclass_computes_is_not_asked_for() -> None:
    """pydantic's schema has it, and even requires it; no value of a model is accepted for it."""

    @dataclass
    class Order:
        price: int
        total: int = dataclass_field(init=False)

        def __post_init__(self) -> None:
            self.total = 2 * self.price

    made = Signature({"q": InputField(), "order": (Order, OutputField())})
    schema = {
        "title": "Order",
        "type": "object",
        "properties": {"price": {"type": "integer"}},
        "required": ["price"],
    }
    assert made.output_schema()["$defs"] == {"Order": schema}
    assert "total" not in ChatAdapter().format(made, [], {"q": "?"})[0]["content"]
    assert made.check_output("order", '{"price": 2}').total == 4


def test_an_enum_whose_values_are_not_json_is_read_by_name() -> None:
    class Unit(Enum):
        METRE = object()

    made = Signature({"q": InputField(), "a": (Unit, OutputField())})
    assert made.output_schema()["properties"] == {"a": {}}
    assert made.check_output("a", "METRE") is Unit.METRE


def test_a_field_may_have_the_name_of_an_attribute_of_signatures():
    made = Signature("question -> instructions, fields: int")
    assert list(made.model_fields) == ["question", "instructions", "fields"]
    assert made(question="q", instructions="i", fields=1).model_dump() == {
        "question": "q",
        "instructions": "i",
        "fields": 1,
    }
    assert (
        made.instructions
        == "Given the fields `question`, produce the fields `instructions`, `fields`."
    )


def test_signatures_made_from_others_keep_defaults_and_constraints_for_pydantic():
    made = Signature("question, k: int = 3 -> answer: str").with_updated_fields(
        "k",
        desc="how many",
        ge=1,
    )
    assert made.input_fields["k"].description == "how many"
    with pytest.raises(ValidationError):
        made(question="q", k=0, answer="a")
    assert made(question="q", answer="a").k == 3
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert repr(again.input_fields) == repr(made.input_fields)


@pytest.mark.parametrize("written", ["list[int]", list["int"], Optional["list[int]"]], ids=repr)
def test_the_type_of_a_field_may_be_given_as_text(written):
    made = Signature("a -> b").append("c", OutputField(), written)
    assert made.plan.outputs["c"].annotation in (list[int], list[int] | None)
    assert made.output_fields["c"].annotation == made.plan.outputs["c"].annotation
    assert made.check_output("c", "[1, 2]") == [1, 2]
