"""The types that tools take, as pydantic knows them: for random walks over the grammars of their
schemas.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import ipaddress
import random
import uuid
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import jsonschema
from pydantic import (
    UUID4,
    AfterValidator,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    SecretStr,
    TypeAdapter,
)
from typing_extensions import TypedDict

from ferrule.models.local.constraint import Constraint
from ferrule.schema.lowering.bound import Bounds
from ferrule.testing import byte_vocabulary, random_walk


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=0, le=9)] = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: Annotated[str, Field(min_length=1, max_length=8)]


class Tree(BaseModel):
    label: str
    inside: list[Tree] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Place(NamedTuple):
    x: float
    y: float


@dataclass
class Box:
    size: Annotated[int, Field(ge=1)]
    inside: Box | None = None


class Options(TypedDict, total=False):
    deep: bool
    size: int


TYPES: dict[str, Any] = {
    "str": str, "int": int, "float": float, "bool": bool, "none": None, "any": Any, "bytes": bytes,
    "bounded str": Annotated[str, Field(min_length=2, max_length=5)],
    "pattern": Annotated[str, Field(pattern=r"^[a-z]+-\d{2,3}$")],
    "escaped pattern": Annotated[str, Field(pattern=r"^\w+\.\\\d\s?/$")],
    "search pattern": Annotated[str, Field(pattern=r"x.y")],
    "bounded int": Annotated[int, Field(gt=-3, lt=100)], "multiple": Annotated[int, Field(multiple_of=7, ge=0, le=1000)],
    "bounded float": Annotated[float, Field(gt=0, le=2.5)], "small float": Annotated[float, Field(gt=0, lt=0.1)],
    "float below a whole one": Annotated[float, Field(ge=-1.5, lt=-1)], "float above a whole one": Annotated[float, Field(gt=5, le=5.5)],
    "date": dt.date, "time": dt.time, "datetime": dt.datetime, "timedelta": dt.timedelta,
    "uuid4": UUID4, "path": Path, "secret": SecretStr, "ipv6 network": ipaddress.IPv6Network, "ipv4 interface": ipaddress.IPv4Interface,
    "uuid": uuid.UUID, "ipv4": ipaddress.IPv4Address, "ipv6": ipaddress.IPv6Address, "network": ipaddress.IPv4Network,
    "url": AnyUrl, "http url": HttpUrl,
    "enum": Colour, "int enum": Level, "literal": Literal["a", 1, True],
    "list": list[int], "bounded list": Annotated[list[str], Field(min_length=1, max_length=3)], "list of lists": list[list[bool]],
    "tuple": tuple[int, str], "any tuple": tuple[int, ...], "named tuple": Place,
    "set of literals": set[Literal["a", "b", "c"]], "set": set[int], "frozenset": frozenset[str],
    "dict": dict[str, int], "dict of literals": dict[Literal["a", "b"], int], "dict of any": dict[str, Any],
    "dict by enum": dict[Colour, bool],
    "optional": Optional[int], "union": Union[int, str, None], "union of models": Union[Cat, Dog],
    "discriminated": Annotated[Union[Cat, Dog], Field(discriminator="kind")],
    "list of discriminated": list[Annotated[Union[Cat, Dog], Field(discriminator="kind")]],
    "dataclass": Box, "deque": deque[int], "nested optional": Optional[list[Optional[Box]]],
    "model": Dog, "recursive model": Tree, "open model": Open, "typed dict": Options,
}  # fmt: skip


SAY_LESS: dict[str, tuple[Any, str]] = {
    "decimal": (decimal.Decimal, '"about one"'),
    "bounded decimal": (
        Annotated[decimal.Decimal, Field(max_digits=6, decimal_places=2)],
        "1.23456",
    ),
    "date": (dt.date, '"2023-02-29"'),
    "dict by int": (dict[int, str], '{"a":""}'),
    "validator": (
        Annotated[str, AfterValidator(lambda text: text if text == text.upper() else int("x"))],
        '"a"',
    ),
}
"""Types whose schema says less than they take, with a value that only the type refuses: calls with
one are refused after decoding.
"""


def rejected(name: str, walks: int) -> list[str]:
    """The texts of so many random walks that JSON Schema or pydantic does not take."""
    adapter: TypeAdapter[Any] = TypeAdapter(TYPES[name])
    schema = adapter.json_schema()
    constraint = Constraint.of_schema(byte_vocabulary(), schema)
    bounded = Constraint.of_schema(byte_vocabulary(), schema, bounds=Bounds())
    check = jsonschema.Draft202012Validator(schema)
    found: list[str] = []
    for seed in range(walks):
        # Most walks are bounded: a free text without a pattern's end may take thousands of tokens.
        walked = constraint if seed % 4 == 0 else bounded
        text = random_walk(walked, random.Random(f"{name} {seed}")).text
        value = constraint.read(text).value
        try:
            adapter.validate_json(text)
            check.validate(value)
        except ValueError as error:
            found.append(f"{text}: {error}")
        except jsonschema.ValidationError as error:
            found.append(f"{text}: {error.message}")
    return found
