"""`Constraint`: limits a model's answer to a call of a tool, or to a value of one schema."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from msgspec.structs import replace

from ferrule.encoding.encode import json_text
from ferrule.errors import ConstraintError, ToolCallError, shown
from ferrule.models.local.grammar import Answer, CallForm, call_union, grammar_of
from ferrule.models.local.matcher import Matcher
from ferrule.models.local.vocabulary import Cache, grammar_problem, make_matcher
from ferrule.schema.lowering.bound import Bounds, bound, longest_bytes
from ferrule.schema.lowering.lower import LoweredSchema, lower_schema
from ferrule.schema.nodes import Schema, is_object
from ferrule.schema.validator import Validator
from ferrule.values.calls.call import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.models.local.vocabulary import Vocabulary
    from ferrule.schema.lowering.rules import SchemaLoss

__all__ = ["Answer", "CallForm", "Constraint"]

CONSTRAINTS: Cache[Constraint] = Cache(64)
"""The most recently used constraints, by vocabulary, schemas and form."""
_PROBLEMS: Cache[str] = Cache(1_000)
"""Why the engine rejects the grammar of one schema; empty if it accepts it."""
_VALUE = CallForm(intention=False)


class Constraint:
    """A grammar of answers over a vocabulary.

    Immutable, and shared by threads: each sequence has its own `matcher()`. Make one with
    `Constraint.of_calls(...)` or `Constraint.of_schema(...)`, which return the same object for the
    same content.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        schemas: Mapping[str, Schema],
        form: CallForm,
        *,
        partial: bool,
        bounds: Bounds | None,
        calls: bool,
    ) -> None:
        self.vocabulary = vocabulary
        self.form = form
        self._calls = calls
        self._schemas = schemas
        self._validators: dict[str, Validator] = {}
        lowered = {name: lower_schema(schema, "grammar") for name, schema in schemas.items()}
        self.losses: Mapping[str, tuple[SchemaLoss, ...]] = {
            name: tool.losses for name, tool in lowered.items() if tool.losses
        }
        """For each tool: the rules that the grammar narrows, or cannot enforce (`breaking`).

        The answer is validated against these.
        """
        self.level: Mapping[str, Literal["exact", "rewritten", "partial"]] = {
            name: tool.level for name, tool in lowered.items()
        }
        if not partial:
            _check_enforced(lowered)
        if bounds is not None:
            lowered = {
                name: replace(tool, schema=bound(tool, bounds)) for name, tool in lowered.items()
            }
        if calls:
            schema = call_union(lowered, intention=form.intention)
        else:
            schema = lowered[""].schema
        opener_id = None
        if form.prose_chars:
            opener_id = vocabulary.special_id(form.opener)
        self.grammar = grammar_of(schema, form, opener_id)
        self.longest_bytes: int | None = None
        """The bytes of the longest possible answer; None without `bounds`."""
        if bounds is not None:
            self.longest_bytes = longest_bytes(schema) + form.most_bytes
        self._check_accepted(lowered)

    @classmethod
    def of_calls(
        cls,
        vocabulary: Vocabulary,
        declarations: Iterable[Mapping[str, Any]],
        *,
        form: CallForm | None = None,
        partial: bool = False,
        bounds: Bounds | None = None,
    ) -> Constraint:
        """The constraint of calls of these tools.

        Args:
            vocabulary: The tokens of the model.
            declarations: Each is `{"type": "function", "function": {"name", "parameters"}}`, as in
                `Declarations`.
            form: The thought and text around the call.
            partial: Whether to accept keywords that a grammar cannot enforce, and only validate
                them in the answer.
            bounds: Limits for texts, lists and recursion that the schemas leave open; without them
                an answer may have any length.

        Raises:
            ConstraintError: Without `partial`, a schema has such a keyword; the message names it
                with its tool and path.

        """
        schemas: dict[str, Schema] = {}
        for declaration in declarations:
            function = declaration["function"]
            parameters: Schema = function.get("parameters") or {"properties": {}}
            schemas[function["name"]] = {"type": "object", **parameters}
        if not schemas:
            raise ConstraintError(
                "There is no tool to call: a constraint of calls needs at least one declaration."
            )
        return cls._cached(
            vocabulary, schemas, form or CallForm(), partial=partial, bounds=bounds, calls=True
        )

    @classmethod
    def of_schema(
        cls,
        vocabulary: Vocabulary,
        schema: Schema,
        *,
        form: CallForm | None = None,
        partial: bool = False,
        bounds: Bounds | None = None,
    ) -> Constraint:
        """The constraint of one value of this schema, which may be of any type. See `of_calls`."""
        return cls._cached(
            vocabulary, {"": schema}, form or _VALUE, partial=partial, bounds=bounds, calls=False
        )

    @classmethod
    def _cached(
        cls, vocabulary: Vocabulary, schemas: Mapping[str, Schema], form: CallForm, **options: Any
    ) -> Constraint:
        key = (vocabulary, json_text(schemas), form, *options.items())
        return CONSTRAINTS.get(key, lambda: cls(vocabulary, schemas, form, **options))

    def matcher(self) -> Matcher:
        """A matcher for one new sequence."""
        return Matcher(self.vocabulary, self.grammar, self._start, self.read)

    @cached_property
    def _start(self) -> Any:
        """The engine's matcher before the first token; every sequence copies it."""
        return make_matcher(self.vocabulary.tokenizer, self.lark)

    @property
    def lark(self) -> str:
        """The grammar in llguidance's notation, which servers with llguidance also read.

        The engine has accepted it.
        """
        return self.grammar.lark

    # -- reading an answer

    def read(self, text: str) -> Answer:
        """Read and validate a whole answer, from a matcher or from a server.

        Raises `ToolCallError` with the text as `raw`.
        """
        thought, body = "", text
        if self.form.prose_chars:
            thought, opener, body = text.partition(self.form.opener)
            if not opener and self.form.call:
                self._refuse(text, f"there is no `{self.form.opener}` before a call")
            if not opener:
                return Answer(text=text)
        if self.form.closer:
            body = body.removesuffix(self.form.closer)
        try:
            value = json.loads(body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            self._refuse(text, f"it is not JSON: {error}")
        if self._calls:
            return Answer(thought, calls=(self._call(text, value),))
        self._validate(text, "", value)
        return Answer(thought, value=value)

    def _call(self, text: str, value: Any) -> ToolCall:
        keys = {"name", "arguments"}
        if self.form.intention:
            keys.add("intention")
        if not is_object(value) or set(value) != keys:
            self._refuse(text, "it is not an object with the keys of a call")
        name: Any = value["name"]
        if name not in self._schemas:
            self._refuse(text, f"there is no tool {shown(name)}")
        arguments: Any = value["arguments"]
        self._validate(text, name, arguments)
        return ToolCall(name=name, args=arguments, intention=value.get("intention"))

    def _validate(self, text: str, name: str, value: Any) -> None:
        """Check a value by the schema itself, which may say more than its grammar."""
        if name not in self._validators:
            self._validators[name] = Validator(self._schemas[name], lenient=True)
        if self._validators[name].is_valid(value):
            return
        if name:
            self._refuse(text, "the arguments do not fit the tool's schema", name)
        self._refuse(text, "the value does not fit its schema")

    def _refuse(self, text: str, why: str, tool: str | None = None) -> NoReturn:
        code, subject = "invalid_tool_call", "answer"
        if tool is not None:
            code, subject = "invalid_tool_call_arguments", f"call of `{tool}`"
        raise ToolCallError(
            code,
            f"The {subject} breaks its constraint: {why}. The answer was: {shown(text, 600)}",
            raw=text,
            tool=tool,
        )

    def _check_accepted(self, lowered: Mapping[str, LoweredSchema]) -> None:
        """Raise for a schema that the engine rejects.

        Each is checked alone: in a union the engine silently drops an unsatisfiable one.
        """
        tokenizer = self.vocabulary.tokenizer
        for name, tool in lowered.items():
            alone = grammar_of(tool.schema, _VALUE).lark
            key = (self.vocabulary.digest, alone)
            problem = _PROBLEMS.get(key, lambda alone=alone: grammar_problem(tokenizer, alone))
            if problem:
                subject = _subject(name)
                raise ConstraintError(
                    f"The engine has no grammar for the schema of {subject}: {problem}"
                )
        problem = grammar_problem(tokenizer, self.lark)
        if problem:
            raise ConstraintError(
                f"The engine has no grammar for these {len(lowered)} schemas together: {problem}"
            )


def _check_enforced(lowered: Mapping[str, LoweredSchema]) -> None:
    """Raise for schemas with keywords that a grammar cannot enforce."""
    lines: list[str] = []
    for name, tool in lowered.items():
        for loss in tool.losses:
            if loss.breaking:
                path = loss.path or "/"
                lines.append(f"- {_subject(name)}, at `{path}`, `{loss.keyword}`: {loss.lost}")
    if lines:
        losses = "\n".join(lines)
        raise ConstraintError(
            f"A grammar cannot enforce everything that these schemas say:\n{losses}\n"
            "Change the schemas, or pass `partial=True`: then the answers are validated after "
            "they are written."
        )


def _subject(name: str) -> str:
    """What a schema belongs to, in messages: a tool, or the one value."""
    if name:
        return f"`{name}`"
    return "the value"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is not a number of JSON")
