"""Write any Python value as JSON. Never raises, and writes the same text in every process.

The fast path is pydantic's Rust serialiser. Values that it cannot write (lone surrogates, cycles),
or writes in an order that differs between processes (sets), are converted to plain ones first.
"""

# Values of any type pass here.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from types import GeneratorType
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from ferrule.encoding.pattern import pattern

_ADDRESS = pattern(r" at 0x[0-9a-fA-F]+")
_OWN_MODULE = pattern(r"(?<![\w.])ferrule\.(?:\w+\.)+(?=\w)")
_DEEPEST = 100
_MOST_DIGITS = 4300
"""Python's limit for integers as text. Longer integers are written as hexadecimal strings."""
_TOO_MANY = b"0" * (_MOST_DIGITS + 1)
_LARGEST = 10**_MOST_DIGITS
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_STARS = "*" * 10
SCALARS = frozenset({str, int, float, bool, type(None)})
_LEAVES = SCALARS | {bytes}
_PLAIN_BITS = 64


def json_bytes(value: object, *, is_settled: bool = False) -> bytes:
    """The value as UTF-8 JSON. NaN and the infinities become strings: bare `NaN` is not JSON (RFC 8259, section 6).

    `is_settled` skips a check that takes longer than writing: pass it if the value contains plain
    containers and scalars only.
    """
    return _written(value, is_settled or is_flat(value))


def _written(value: object, is_settled: bool) -> bytes:
    try:
        if is_settled or _settled(value):
            made = to_json(value, inf_nan_mode="strings", fallback=_unknown)
            if len(made) <= _MOST_DIGITS or _TOO_MANY not in made.translate(_DIGITS):
                return made
    except Exception:  # noqa: BLE001, S110  serialisers, mappings and `__str__` of users may raise anything; the slow path guards each call
        pass
    return _slowly(value)


def is_flat(value: Any) -> bool:
    """Whether a value is a scalar or bytes, or a dict of these. Most are, and this test saves 8 to 10 % of an agent's step."""
    kind = type(value)
    if kind is not dict:
        return kind in _LEAVES
    for each in value.values():  # noqa: SIM110  a plain loop, in what every step does
        if type(each) not in _LEAVES:
            return False
    return True


def to_json(value: object, **options: Any) -> bytes:
    """The serialiser, which replaces this function at its first use: reading a list of runs writes nothing, and needs no pydantic."""
    from pydantic_core import to_json as found

    globals()["to_json"] = found
    return found(value, **options)


def json_text(value: object, *, is_settled: bool = False) -> str:
    """The value as JSON text; see `json_bytes`."""
    return json_bytes(value, is_settled=is_settled).decode()


def flat_text(value: object) -> str | None:
    """`json_text` of a flat value; None for any other."""
    return _written(value, True).decode() if is_flat(value) else None


def jsonable(value: object) -> Any:
    """The value after a round trip through JSON: dicts, lists, strings, numbers, booleans, None."""
    made = json_bytes(value)
    try:
        return from_json(made)
    except ValueError:  # deeper than it reads, or a lone surrogate
        return json.loads(made)


def from_json(made: bytes) -> Any:
    """The parser, which replaces this function at its first use. It takes at most a fifth of the time of `json.loads`."""
    from pydantic_core import from_json as found

    globals()["from_json"] = found
    return found(made)


def sha256(data: bytes) -> Any:
    """`hashlib.sha256`, imported at the first digest, because it loads OpenSSL."""
    global _sha256
    if _sha256 is None:
        from hashlib import sha256 as _sha256
    return _sha256(data)


_sha256: Any = None


def digest_of(value: object, length: int = 16) -> str:
    """The first hexadecimal digits of the SHA-256 of a value's JSON."""
    return sha256(json_bytes(value)).hexdigest()[:length]


def is_exact(value: Any) -> bool:
    """Whether JSON preserves a value: not NaN, integers of thousands of digits, adjacent surrogate halves, or objects."""
    kind = type(value)
    if (kind is str and value.isascii()) or (
        kind is int and value.bit_length() < _PLAIN_BITS
    ):  # quickly
        return True
    if value is None or kind is bool:
        return True
    made = jsonable(value)
    try:
        return bool(made == value)
    except ValueError:  # arrays compare element by element, and have no truth value
        return False


def has_json_form(value: object) -> bool:
    """Whether a value can be written as JSON, other than as the text of an object."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        return False
    return True


def object_text(value: object) -> str:
    """`printed`, or the object's type if `__str__` raises."""
    text = printed(value)
    if text is None:
        text = _ADDRESS.sub("", object.__repr__(value))
    return (
        without_modules(text) if text.startswith("<") else text
    )  # other text may name a module on purpose


def printed(value: object) -> str | None:
    """`str` of an object without memory addresses, so that equal runs give equal text; None if `__str__` raises."""
    try:
        return _ADDRESS.sub("", str(value))
    except Exception:  # noqa: BLE001  a `__str__` may raise anything, and a result must still be shown
        return None


def escape_surrogates(text: str) -> str:
    """Text that can be encoded: lone surrogates are escaped."""
    return text.encode("utf-8", "backslashreplace").decode() if not text.isascii() else text


def with_whole_characters(text: str) -> str:
    """Text in which a surrogate pair is one character, as it is after a round trip through JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text


def repr_text(text: str) -> str:
    """A `repr` without memory addresses and ferrule's modules (`<class 'ferrule.Image'>`), so that it is equal in every process."""
    return without_modules(_ADDRESS.sub("", text))


def without_modules(text: str) -> str:
    """Text that names ferrule's classes without their module, `ferrule.Image`: stored data must survive a moved module."""
    return _OWN_MODULE.sub("ferrule.", text)


def is_masked(value: object) -> bool:
    """Whether the JSON of a value contains the stars that pydantic writes for a `SecretStr`."""
    return _STARS in (value if isinstance(value, str) else json_text(value))


def is_read_once(value: object) -> bool:
    """Whether a value is an iterator, which can be read only once. Mappings, models and dataclasses are not: their fields are written."""
    kind = type(value)
    if kind in _LEAVES or not hasattr(kind, "__next__") or not hasattr(kind, "__iter__"):
        return False
    return (
        not isinstance(value, Mapping)
        and not hasattr(kind, "__pydantic_serializer__")
        and not hasattr(kind, "__dataclass_fields__")
    )


async def items_of(value: AsyncGenerator[Any, Any]) -> list[Any]:
    """Read an async generator to its end."""
    return [each async for each in value]


def _settled(value: Any) -> bool:
    """Whether the serialiser writes the value the same in every process: it contains no set, and no model that writes bare NaN."""
    todo: list[Any] = [value]
    seen: set[int] = set()
    for each in todo:
        kind = type(each)
        if kind is dict:
            inside = each.values()
        elif kind is list or kind is tuple:
            inside = each
        elif isinstance(each, (set, frozenset, GeneratorType)) or _writes_bare_nan(
            kind,
        ):  # a generator is read once: on the slow path
            return False
        else:
            inside = inside_of(each)
        for one in inside:
            if type(one) not in _LEAVES and id(one) not in seen:
                seen.add(id(one))
                todo.append(one)
    return True


def _writes_bare_nan(kind: type[Any]) -> bool:
    return (
        hasattr(kind, "__pydantic_serializer__")
        and getattr(kind, "model_config", {}).get("ser_json_inf_nan") == "constants"
    )


def inside_of(value: Any) -> Iterable[Any]:
    """The values inside a container, a model, a dataclass or a record; empty for anything else."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        return value
    if hasattr(type(value), "__pydantic_serializer__"):
        return vars(value).values() if hasattr(value, "__dict__") else ()
    return _fields(value).values()


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a record or a dataclass; empty for anything else."""
    if isinstance(value, Struct):
        return {name: each for name, each in asdict(value).items() if not name.startswith("_")}
    names: Mapping[str, Any] = getattr(type(value), "__dataclass_fields__", {})
    return {name: getattr(value, name, None) for name in names}


def _unknown(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else _fields(value) or object_text(value)


def _slowly(value: object) -> bytes:
    plain = _plain(value, frozenset(), 0)
    try:
        return to_json(plain)
    except ValueError:  # lone surrogates: they have no UTF-8 form, but an escape
        return json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode()


def _plain(value: Any, above: frozenset[int], depth: int) -> Any:
    """A copy made of plain containers and scalars. A note replaces cycles and values that are nested too deeply."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, bytearray)):
        return _plain_scalar(value)
    if id(value) in above or depth > _DEEPEST:
        return "(cycle)" if id(value) in above else "(too deep)"
    try:
        form = _form(value)
    except Exception:  # noqa: BLE001  a serialiser or a mapping of a user
        return object_text(value)
    inside = above | {id(value)}
    if type(form) is dict:
        return {_key(key): _plain(each, inside, depth + 1) for key, each in form.items()}
    if type(form) is list:
        return [_plain(each, inside, depth + 1) for each in form]
    return _plain_scalar(form)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, str):
        return with_whole_characters(
            str.__str__(value),
        )  # not the `__str__` of a subclass, such as an enum
    if isinstance(value, float):
        value = float.__float__(value)
        return (
            value
            if value - value == 0
            else str(value).replace("inf", "Infinity").replace("nan", "NaN")
        )
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    if isinstance(value, int) and not isinstance(value, bool):
        value = int.__int__(value)
        return value if -_LARGEST < value < _LARGEST else hex(value)
    return value


def _form(value: Any) -> Any:
    """One layer of a value: a dict, a list, or a scalar."""
    kind = type(value)
    if isinstance(value, dict):  # not the `items` of a subclass
        return dict(dict.items(value))
    if isinstance(value, list):
        return list(list.__iter__(value))
    if isinstance(value, tuple):
        return list(tuple.__iter__(value))
    if isinstance(value, (set, frozenset)):
        return _in_order(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(kind, "__pydantic_serializer__"):
        made: Any = _form_of_model(value, kind)
        return (
            object_text(value)
            if made is value
            else made
            if type(made) in _LEAVES or type(made) in {dict, list}
            else _form(made)
        )
    if hasattr(kind, "__dataclass_fields__") or isinstance(value, Struct):
        return _fields(value)
    if isinstance(value, (deque, GeneratorType)):
        return list(value)
    return json.loads(to_json(value, inf_nan_mode="strings", fallback=object_text))


def _form_of_model(value: Any, kind: Any) -> Any:
    """A model in the JSON form of its serialiser. A set in it stays a set, to be sorted later."""
    to_python, rules = kind.__pydantic_serializer__.to_python, kind.__pydantic_decorators__
    if _settled(value):
        with suppress(ValueError):  # a lone surrogate, a cycle
            return from_json(to_json(value, inf_nan_mode="strings", fallback=_unknown))
    if (
        is_root := getattr(kind, "__pydantic_root_model__", False)
    ) or rules.model_serializers:  # not written field by field
        return (
            value.root
            if is_root and not rules.model_serializers
            else to_python(value, by_alias=True, warnings=False)
        )
    fields, extra = kind.__pydantic_fields__, getattr(value, "__pydantic_extra__", None) or {}
    made: dict[str, Any] = {}
    for name in {**fields, **getattr(value, "__dict__", {}), **extra, **rules.computed_fields}:
        inside = getattr(value, name, None)
        try:
            if _settled(inside):
                made |= from_json(
                    to_json(value, include={name}, inf_nan_mode="strings", fallback=_unknown),
                )
            else:
                made |= to_python(value, include={name}, by_alias=True, warnings=False)
        except (
            TypeError,
            ValueError,
        ):  # a set of models would become a set of dicts, which Python does not have; or as above
            field = fields.get(name) or getattr(rules.computed_fields.get(name), "info", None)
            made[
                getattr(field, "serialization_alias", None) or getattr(field, "alias", None) or name
            ] = inside
    return made


def _in_order(values: set[Any] | frozenset[Any]) -> list[Any]:
    return (
        sorted(values) if {*map(type, values)} in ({str}, {int}) else sorted(values, key=json_bytes)
    )


def _key(key: Any) -> str:
    if isinstance(key, str):
        return with_whole_characters(str.__str__(key))
    if type(key) is int:
        return str(_plain_scalar(key))
    try:
        [text] = json.loads(to_json({key: None}))
    except Exception:  # noqa: BLE001  as `object_text`
        return object_text(key)
    return text


TYPE_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
"""The JSON Schema name of each plain type."""


def is_plain(annotation: Any) -> bool:
    """Whether a type is plain. Values of exactly a plain type need no validator: pydantic's first costs a process 20 ms."""
    return isinstance(annotation, type) and annotation in TYPE_NAMES


def fits(kind: Any, value: Any) -> bool:
    """Whether a value has exactly that plain type and a JSON form. Otherwise pydantic decides."""
    return type(value) is kind and (kind is not float or value - value == 0.0)
