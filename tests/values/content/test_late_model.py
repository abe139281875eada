"""A late model behaves as the same model that pydantic builds at once."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Optional, get_type_hints

import pydantic
import pytest
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from ferrule import OutputField, Signature
from ferrule.values.content.late_model import (
    LateModelType,
    build,
    is_field_info,
    is_late,
    late_field,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def model(*, late: bool) -> Any:
    """The same class, built late or at once."""
    keywords: Any = {"metaclass": LateModelType, "late": True} if late else {}

    class Call(BaseModel, **keywords):
        """A call."""

        model_config: ClassVar[ConfigDict] = ConfigDict(
            frozen=True,
            extra="forbid",
            defer_build=True,
        )

        name: str
        args: Annotated[dict[str, Any], BeforeValidator(lambda value: value or {})] = {}
        id: str | None = (
            late_field(lambda: pydantic.Field(default=None, alias="call_id"))
            if late
            else pydantic.Field(None, alias="call_id")
        )

        @model_validator(mode="before")
        @classmethod
        def _from_name(cls, value: Any) -> Any:
            return {"name": value} if isinstance(value, str) else value

        def words(self) -> str:
            return f"{self.name}()"

    return Call


ASKED: dict[str, Callable[[Any], Any]] = {
    "an instance": lambda cls: cls(name="x", args={"a": 1}),
    "an instance that does not fit": lambda cls: cls(nam="x"),
    "a method": lambda cls: cls(name="x").words(),
    "fields": lambda cls: repr(cls.model_fields),
    "fields of an instance's class": lambda cls: list(type(cls(name="x")).model_fields),
    "configuration": lambda cls: cls.model_config,
    "schema": lambda cls: cls.model_json_schema(),
    "validate": lambda cls: cls.model_validate({"name": "x"}),
    "validate by its own validator": lambda cls: cls.model_validate("x"),
    "validate JSON": lambda cls: cls.model_validate_json('{"name": "x", "call_id": "1"}'),
    "an adapter": lambda cls: TypeAdapter(cls).validate_python({"name": "x"}),
    "an adapter of a list": lambda cls: TypeAdapter(list[cls]).json_schema(),
    "construct": lambda cls: cls.model_construct(name="x"),
    "a subclass": lambda cls: type(
        "More",
        (cls,),
        {"__module__": __name__, "__annotations__": {"more": int}},
    )(name="x", more=1),
    "a field of another model": lambda cls: type(
        "More",
        (BaseModel,),
        {"__module__": __name__, "__annotations__": {"more": cls}},
    )(more="x"),
    "signature": lambda cls: str(inspect.signature(cls)),
    "signature of a built one": lambda cls: (cls(name="x"), str(inspect.signature(cls)))[1],
    "hash": lambda cls: hash(cls(name="x", id=None)) == hash(cls(name="x")),
    "a set attribute": lambda cls: setattr(cls(name="x"), "name", "y"),
    "equality": lambda cls: (cls(name="x") == cls(name="x"), cls(name="x") == cls(name="y")),
    "a changed copy": lambda cls: cls(name="x").model_copy(update={"name": "z"}),
    "a deep copy": lambda cls: copy.deepcopy(cls(name="x")),
    "a dump": lambda cls: cls(name="x").model_dump(),
    "JSON": lambda cls: cls(name="x").model_dump_json(by_alias=True),
    "iteration": lambda cls: dict(cls(name="x")),
    "a missing attribute": lambda cls: cls(name="x").nothing,
    "a missing attribute of the class": lambda cls: cls.nothing,
    "the default of a field": lambda cls: cls.args,
    "type hints": lambda cls: list(get_type_hints(cls)),
    "rebuild": lambda cls: cls.model_rebuild(force=True),
    "complete": lambda cls: cls.__pydantic_complete__,
    "core schema": lambda cls: type(cls.__pydantic_core_schema__).__name__,
    "doc": lambda cls: cls.__doc__,
}


def answer(ask: Callable[[Any], Any], cls: Any) -> str:
    """The answer, or the error, as text."""
    try:
        found = repr(ask(cls))
    except (ValidationError, AttributeError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
    return re.sub(r"0x\w+|_\w*\d{6,}", "", found)


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_what_is_asked_first_is_answered_as_by_a_model_that_is_built_at_once(ask):
    late = model(late=True)
    assert is_late(late)
    assert answer(ask, late) == answer(ask, model(late=False))


def test_a_late_model_is_a_model():
    late = model(late=True)
    assert issubclass(late, BaseModel)
    assert is_late(late)
    build(late)
    assert not is_late(late)
    build(late)


def test_bases_are_built_with_a_class_and_subclasses_are_not():
    class Base(BaseModel, metaclass=LateModelType, late=True):
        a: int

    class Below(Base, late=True):
        b: int

    build(Base)
    assert is_late(Below)
    assert list(Below.model_fields) == ["a", "b"]
    assert Below(a=1, b=2).model_dump() == {"a": 1, "b": 2}


def test_threads_that_ask_at_once_get_the_same_fields():
    late, together = model(late=True), Barrier(8)

    def ask(_: int) -> Any:
        together.wait()
        return late.model_fields

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert all(each is found[0] for each in found)


class Unfit:
    """A type that pydantic knows nothing of."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_that_is_forked_while_a_thread_builds_a_class_builds_it_itself():
    """The thread does not live on in the child, which waited for it for ever."""
    begun, forked = Event(), Event()

    def annotation() -> Any:
        begun.set()
        forked.wait(60)
        return pydantic.Field(default=1)

    class Late(BaseModel, metaclass=LateModelType, late=True):
        number: int = late_field(annotation)

    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(lambda: Late().number)
        assert begun.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            forked.set()
            os._exit(Late().number)
        forked.set()
        assert (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), building.result(60)) == (1, 1)


def test_a_class_that_cannot_be_built_says_so_each_time():
    class Odd(BaseModel, metaclass=LateModelType, late=True):
        x: Unfit = 1

    for _ in range(2):
        with pytest.raises(pydantic.PydanticUserError, match="Unfit"):
            Odd(x=1)


def test_a_field_may_have_the_name_of_an_attribute_of_signatures():
    made = Signature("question -> instructions, fields: int")
    assert is_late(made)
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


def test_a_value_is_a_field_of_pydantic_or_not():
    assert is_field_info(pydantic.Field(default=1))
    assert not is_field_info(1)
