"""Write any Python value as JSON. Never raises, and writes the same text in every process.

Pydantic's serialiser writes nearly every value. It has no answer for three kinds, which are
converted to plain containers first, layer by layer:

- values that it refuses: lone surrogates, cycles, objects whose `__str__` raises;
- sets, which it writes in the order of their hashes, and these differ between processes;
- models that are configured to write bare `NaN`, which is not JSON (RFC 8259, section 6).

A journal is compared with the values of a later process, so equal values must have equal texts.
"""

# Values of any type pass here.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from types import GeneratorType
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from ferrule.encoding.pattern import pattern

SCALARS = frozenset({str, int, float, bool, type(None)})
TYPE_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
"""The JSON Schema name of each plain type."""

_LEAVES = SCALARS | {bytes}
_DEEPEST = 100
_MOST_DIGITS = 4300
"""Python's limit for integers as text. Longer integers are written as hexadecimal strings."""
_TOO_MANY_DIGITS = pattern(rf"[0-9]{{{_MOST_DIGITS + 1}}}")
_LARGEST = 10**_MOST_DIGITS
_ADDRESS = pattern(r" at 0x[0-9a-fA-F]+")
_FERRULES_MODULE = pattern(r"(?<![\w.])ferrule\.(?:\w+\.)+(?=\w)")
_STARS = "*" * 10
_PLAIN_BITS = 64


# -- JSON


def json_bytes(value: object) -> bytes:
    """The value as UTF-8 JSON. NaN and the infinities become strings."""
    # Serialisers, mappings and `__str__` of users may raise anything. The slow path guards each.
    with suppress(Exception):
        if _is_written_alike(value):
            text = to_json(value, inf_nan_mode="strings", fallback=_fallback)
            if len(text) <= _MOST_DIGITS or not _TOO_MANY_DIGITS.search(text.decode()):
                return text
    plain = _plain(value, frozenset(), 0)
    try:
        return to_json(plain)
    except ValueError:  # a lone surrogate has no UTF-8 form, but an escape
        return json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode()


def json_text(value: object) -> str:
    """The value as JSON text; see `json_bytes`."""
    return json_bytes(value).decode()


def jsonable(value: object) -> Any:
    """The value after a round trip through JSON: dicts, lists, strings, numbers, booleans, None."""
    text = json_bytes(value)
    try:
        return from_json(text)
    except ValueError:  # deeper than it reads, or a lone surrogate
        return json.loads(text)


def digest_of(value: object, length: int = 16) -> str:
    """The first hexadecimal digits of the SHA-256 of a value's JSON."""
    return sha256(json_bytes(value)).hexdigest()[:length]


def is_exact(value: Any) -> bool:
    """Whether a value is equal after a round trip through JSON.

    Not equal are NaN, integers of thousands of digits, adjacent surrogate halves, and objects.
    """
    # Nearly all values are short texts and small numbers, which JSON preserves.
    if type(value) is str and value.isascii():
        return True
    if type(value) is int and value.bit_length() < _PLAIN_BITS:
        return True
    copy = jsonable(value)
    try:
        return bool(copy == value)
    except ValueError:  # arrays compare element by element, and have no truth value
        return False


def has_json_form(value: object) -> bool:
    """Whether a value can be written as JSON, other than as the text of an object."""
    try:
        to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        return False
    return True


def is_masked(value: object) -> bool:
    """Whether the JSON of a value contains the stars that pydantic writes for a `SecretStr`."""
    if isinstance(value, str):
        text = value
    else:
        text = json_text(value)
    return _STARS in text


# -- types


def is_plain(annotation: Any) -> bool:
    """Whether a type is plain. Values of exactly a plain type need no validator.

    The first validator costs a process 20 ms.
    """
    return isinstance(annotation, type) and annotation in TYPE_NAMES


def fits(kind: Any, value: Any) -> bool:
    """Whether a value has exactly that plain type and a JSON form. Otherwise pydantic decides."""
    if type(value) is not kind:
        return False
    return kind is not float or _is_finite(value)


def is_read_once(value: object) -> bool:
    """Whether a value is an iterator, which can be read only once.

    Mappings, models and dataclasses are not, even if they iterate: their fields are written.
    """
    kind = type(value)
    if kind in _LEAVES or not hasattr(kind, "__next__") or not hasattr(kind, "__iter__"):
        return False
    return not (isinstance(value, Mapping) or _is_model(kind) or _is_dataclass(kind))


async def items_of(value: AsyncGenerator[Any, Any]) -> list[Any]:
    """Read an async generator to its end."""
    return [item async for item in value]


def inside_of(value: Any) -> Iterable[Any]:
    """The values in a container, a model, a dataclass or a struct; empty for anything else."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        return value
    if _is_model(type(value)):
        if hasattr(value, "__dict__"):
            return vars(value).values()
        return ()
    return _fields(value).values()


# -- texts of objects


def object_text(value: object) -> str:
    """`printed`, or the object's type if `__str__` raises."""
    text = printed(value)
    if text is None:
        text = _ADDRESS.sub("", object.__repr__(value))
    # Text in other forms may name a module on purpose.
    if text.startswith("<"):
        return without_modules(text)
    return text


def opaque_text(value: object) -> str | None:
    """The text of an object inside a value that says only what it is, such as `<Order object>`.

    None if every part of the value has a form in JSON, or a text of its own.
    """
    texts: list[str] = []

    def note(part: object) -> object:
        form = _fallback(part)
        if isinstance(form, str) and form.startswith("<"):
            texts.append(form)
        return form

    if isinstance(value, (str, bytes, bytearray, GeneratorType)):
        return None
    with suppress(ValueError):  # a cycle; a value that is too deep
        to_json(value, inf_nan_mode="strings", fallback=note)
    return next(iter(texts), None)


def printed(value: object) -> str | None:
    """`str` of an object without memory addresses, so that equal runs give equal text.

    None if `__str__` raises.
    """
    try:
        return _ADDRESS.sub("", str(value))
    # A `__str__` may raise anything, and a result must still be shown.
    except Exception:  # noqa: BLE001
        return None


def repr_text(text: str) -> str:
    """A `repr` without memory addresses and ferrule's modules, so that it is equal everywhere."""
    return without_modules(_ADDRESS.sub("", text))


def without_modules(text: str) -> str:
    """Text that names ferrule's classes without their module, as in `ferrule.Image`.

    Stored data must survive a moved module.
    """
    return _FERRULES_MODULE.sub("ferrule.", text)


def escape_surrogates(text: str) -> str:
    """Text that can be encoded: lone surrogates are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_column_text(value: Any) -> bool:
    """Whether every store can keep this value as text in a column, and look it up.

    Ids and names are such texts: valid UTF-8 without NUL, which Postgres does not take. (What a run
    says is JSON, in which a NUL is escaped.)
    """
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def with_whole_characters(text: str) -> str:
    """Text in which a surrogate pair is one character, as it is after a round trip through JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text


# -- what the serialiser may write


def _is_written_alike(value: Any) -> bool:
    """Whether the serialiser writes the value alike in every process, as valid JSON."""
    if type(value) in _LEAVES:
        return True
    todo: list[Any] = [value]
    seen: set[int] = set()
    for part in todo:
        kind = type(part)
        if kind is dict:  # nearly every value is made of plain dicts and lists
            inner_values = part.values()
        elif kind is list or kind is tuple:
            inner_values = part
        elif isinstance(part, (set, frozenset, GeneratorType)) or _writes_bare_nan(kind):
            # A generator can be read only once, and this loop must not be the reader.
            return False
        else:
            inner_values = inside_of(part)
        for inner in inner_values:
            if type(inner) not in _LEAVES and id(inner) not in seen:
                seen.add(id(inner))
                todo.append(inner)
    return True


def _writes_bare_nan(kind: type[Any]) -> bool:
    config = getattr(kind, "model_config", {})
    return _is_model(kind) and config.get("ser_json_inf_nan") == "constants"


def _is_model(kind: type[Any]) -> bool:
    return hasattr(kind, "__pydantic_serializer__")


def _is_dataclass(kind: type[Any]) -> bool:
    return hasattr(kind, "__dataclass_fields__")


def _is_finite(value: float) -> bool:
    return value - value == 0.0


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a struct or a dataclass; empty for anything else."""
    if isinstance(value, Struct):
        return asdict(value)
    names: Mapping[str, Any] = getattr(type(value), "__dataclass_fields__", {})
    return {name: getattr(value, name, None) for name in names}


def _fallback(value: object) -> object:
    """The form of a value that the serialiser does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    return _fields(value) or object_text(value)


# -- plain copies


def _plain(value: Any, above: frozenset[int], depth: int) -> Any:
    """A copy made of plain containers and scalars.

    A note replaces cycles and values that are nested too deeply. `above` are the ids of the
    containers around the value.
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes, bytearray)):
        return _plain_scalar(value)
    if id(value) in above:
        return "(cycle)"
    if depth > _DEEPEST:
        return "(too deep)"
    try:
        form = _one_layer(value)
    except Exception:  # noqa: BLE001  a serialiser or a mapping of a user
        return object_text(value)
    inside = above | {id(value)}
    if type(form) is dict:
        return {_plain_key(key): _plain(item, inside, depth + 1) for key, item in form.items()}
    if type(form) is list:
        return [_plain(item, inside, depth + 1) for item in form]
    return _plain_scalar(form)


def _plain_scalar(value: Any) -> Any:
    """A scalar of exactly one of JSON's types.

    The methods of Python's own types are called, not those of a subclass such as an enum.
    """
    if isinstance(value, str):
        return with_whole_characters(str.__str__(value))
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        number = float.__float__(value)
        if _is_finite(number):
            return number
        return str(number).replace("inf", "Infinity").replace("nan", "NaN")
    if isinstance(value, int) and not isinstance(value, bool):
        number = int.__int__(value)
        if -_LARGEST < number < _LARGEST:
            return number
        return hex(number)
    return value


def _plain_key(key: Any) -> str:
    if isinstance(key, str):
        return with_whole_characters(str.__str__(key))
    if type(key) is int:
        return str(_plain_scalar(key))
    try:
        [text] = json.loads(to_json({key: None}))
    except Exception:  # noqa: BLE001  as `object_text`
        return object_text(key)
    return text


def _one_layer(value: Any) -> Any:
    """The value as a dict, a list or a scalar. What is inside it stays as it is.

    Containers are read by the methods of Python's own types: a subclass may have others.
    """
    kind = type(value)
    if isinstance(value, dict):
        return dict(dict.items(value))
    if isinstance(value, list):
        return list(list.__iter__(value))
    if isinstance(value, tuple):
        return list(tuple.__iter__(value))
    if isinstance(value, (set, frozenset)):
        return _in_order(value)
    if isinstance(value, Mapping):
        return dict(value)
    if _is_model(kind):
        form = _one_layer_of_model(value, kind)
        if form is value:
            return object_text(value)
        if type(form) in _LEAVES or type(form) in {dict, list}:
            return form
        return _one_layer(form)
    if _is_dataclass(kind) or isinstance(value, Struct):
        return _fields(value)
    if isinstance(value, (deque, GeneratorType)):
        return list(value)
    return json.loads(to_json(value, inf_nan_mode="strings", fallback=object_text))


def _one_layer_of_model(value: Any, kind: Any) -> Any:
    """A model in the JSON form of its serialiser. A set in it stays a set, to be sorted later."""
    to_python, rules = kind.__pydantic_serializer__.to_python, kind.__pydantic_decorators__
    if _is_written_alike(value):
        with suppress(ValueError):  # a lone surrogate, a cycle
            return from_json(to_json(value, inf_nan_mode="strings", fallback=_fallback))
    # A root model, and one with a serializer of its own, is not written field by field.
    if rules.model_serializers:
        return to_python(value, by_alias=True, warnings=False)
    if getattr(kind, "__pydantic_root_model__", False):
        return value.root
    extra = getattr(value, "__pydantic_extra__", None) or {}
    names = {**kind.__pydantic_fields__, **getattr(value, "__dict__", {}), **extra}
    form: dict[str, Any] = {}
    for name in {**names, **rules.computed_fields}:
        form |= _one_field(value, kind, name)
    return form


def _one_field(model: Any, kind: Any, name: str) -> dict[str, Any]:
    """One field of a model by the name under which it is written; nothing if it is excluded."""
    field_value = getattr(model, name, None)
    # A set of models would become a set of dicts, which Python does not have: `TypeError`.
    with suppress(TypeError, ValueError):
        if _is_written_alike(field_value):
            only = {name}
            return from_json(
                to_json(model, include=only, inf_nan_mode="strings", fallback=_fallback)
            )
        serializer = kind.__pydantic_serializer__
        return serializer.to_python(model, include={name}, by_alias=True, warnings=False)
    computed = kind.__pydantic_decorators__.computed_fields.get(name)
    field = kind.__pydantic_fields__.get(name) or getattr(computed, "info", None)
    alias = getattr(field, "serialization_alias", None) or getattr(field, "alias", None)
    return {alias or name: field_value}


def _in_order(values: set[Any] | frozenset[Any]) -> list[Any]:
    if {type(value) for value in values} in ({str}, {int}):
        return sorted(values)
    return sorted(values, key=json_bytes)
