"""`Constraint`: limits a model's answer to a call of one of several tools, or to a value of one schema, and reads such answers."""

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
_VALUE = CallForm(intention=False)


class Constraint:
    """A grammar of answers over a vocabulary. Immutable, and shared by threads: each sequence has its own `matcher()`.

    Make one with `Constraint.of_calls(...)` or `Constraint.of_schema(...)`, which return the same
    object for the same content.
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
        lowered = {name: lower_schema(each, "grammar") for name, each in schemas.items()}
        self.losses: Mapping[str, tuple[SchemaLoss, ...]] = {
            name: each.losses for name, each in lowered.items() if each.losses
        }
        """For each tool: the rules that the grammar narrows, or cannot enforce (`breaking`); the answer is validated against these."""
        self.level: Mapping[str, Literal["exact", "rewritten", "partial"]] = {
            name: each.level for name, each in lowered.items()
        }
        if not partial:
            self._check_enforced(lowered)
        if bounds is not None:
            lowered = {
                name: replace(each, schema=bound(each, bounds)) for name, each in lowered.items()
            }
        schema = call_union(lowered, intention=form.intention) if calls else lowered[""].schema
        self.grammar = grammar_of(
            schema,
            form,
            vocabulary.special_id(form.opener) if form.prose_chars else None,
        )
        self.longest_bytes = None if bounds is None else longest_bytes(schema) + form.most_bytes
        """The bytes of the longest possible answer; None without `bounds`."""
        self._check_taken(lowered)

    @classmethod
    def of_calls(
        cls, vocabulary: Vocabulary, declarations: Iterable[Mapping[str, Any]], *,
        form: CallForm | None = None, partial: bool = False, bounds: Bounds | None = None,
    ) -> Constraint:  # fmt: skip
        """The constraint of calls of these tools.

        Args:
            vocabulary: The tokens of the model. declarations: Each is `{"type": "function",
            "function": {"name", "parameters"}}`, as in `Declarations`. form: The thought and text
            around the call. partial: Whether to accept keywords that a grammar cannot enforce, and
            only validate them in the answer. bounds: Limits for texts, lists and recursion that the
            schemas leave open; without them an answer may have any length.

        Raises:
            ConstraintError: Without `partial`, a schema has such a keyword; the message names it
            with its tool and path.

        """
        schemas: dict[str, Schema] = {
            each["function"]["name"]: {
                "type": "object",
                **(each["function"].get("parameters") or {"properties": {}}),
            }
            for each in declarations
        }
        if not schemas:
            raise ConstraintError(
                "There is no tool to call: a constraint of calls needs at least one declaration.",
            )
        return cls._kept(
            vocabulary,
            schemas,
            form or CallForm(),
            partial=partial,
            bounds=bounds,
            calls=True,
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
        return cls._kept(
            vocabulary,
            {"": schema},
            form or _VALUE,
            partial=partial,
            bounds=bounds,
            calls=False,
        )

    @classmethod
    def _kept(
        cls,
        vocabulary: Vocabulary,
        schemas: Mapping[str, Schema],
        form: CallForm,
        **options: Any,
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
        """The grammar in llguidance's notation, which servers with llguidance also read. The engine has accepted it."""
        return self.grammar.lark

    # -- reading an answer
    # ----------------------------------------------------------------------------------------

    def read(self, text: str) -> Answer:
        """Read and validate a whole answer, from a matcher or from a server. Raises `ToolCallError` with the text as `raw`."""
        thought, found = "", text
        if self.form.prose_chars:
            thought, opener, found = text.partition(self.form.opener)
            if not opener:
                return (
                    Answer(text=text)
                    if not self.form.call
                    else self._refuse(text, f"there is no `{self.form.opener}` before a call")
                )
        if self.form.closer:
            found = found.removesuffix(self.form.closer)
        try:
            value = json.loads(found, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            self._refuse(text, f"it is not JSON: {error}")
        if not self._calls:
            return Answer(thought, value=self._valid(text, "", value))
        if not is_object(value) or set(value) != {
            "name",
            "arguments",
            *(["intention"] if self.form.intention else []),
        }:
            self._refuse(text, "it is not an object with the keys of a call")
        name: Any = value["name"]
        if name not in self._schemas:
            self._refuse(text, f"there is no tool {shown(name)}")
        arguments = self._valid(text, name, value["arguments"])
        return Answer(
            thought,
            calls=(ToolCall(name=name, args=arguments, intention=value.get("intention")),),
        )

    def _valid(self, text: str, name: str, value: Any) -> Any:
        if name not in self._validators:
            self._validators[name] = Validator(self._schemas[name], lenient=True)
        if not self._validators[name].is_valid(value):
            self._refuse(
                text,
                "the arguments do not fit the tool's schema"
                if name
                else "the value does not fit its schema",
                name or None,
            )
        return value

    def _refuse(self, text: str, why: str, tool: str | None = None) -> NoReturn:
        code = "invalid_tool_call_arguments" if tool else "invalid_tool_call"
        about = f"call of `{tool}`" if tool else "answer"
        raise ToolCallError(
            code,
            f"The {about} breaks its constraint: {why}. The answer was: {shown(text, 600)}",
            raw=text,
            tool=tool,
        )

    # -- schemas without a grammar
    # --------------------------------------------------------------------------------

    def _check_enforced(self, lowered: Mapping[str, LoweredSchema]) -> None:
        lines = [
            f"- {f'`{name}`' if name else 'the value'}, at `{loss.path or '/'}`, `{loss.keyword}`: {loss.lost}"
            for name, each in lowered.items()
            for loss in each.losses
            if loss.breaking
        ]
        if lines:
            told = "\n".join(
                ["A grammar cannot enforce everything that these schemas say:", *lines],
            )
            raise ConstraintError(
                f"{told}\nChange the schemas, or pass `partial=True`: then the answers are validated after they are written.",
            )

    def _check_taken(self, lowered: Mapping[str, LoweredSchema]) -> None:
        """Raise for a schema that the engine rejects. Each is checked alone: in a union the engine silently drops an unsatisfiable one."""
        tokenizer = self.vocabulary.tokenizer
        for name, each in lowered.items():
            alone = grammar_of(each.schema, _VALUE).lark
            problem = _PROBLEMS.get(
                (self.vocabulary.digest, alone),
                lambda alone=alone: grammar_problem(tokenizer, alone),
            )
            if problem:
                raise ConstraintError(
                    f"The engine has no grammar for the schema of {f'`{name}`' if name else 'the value'}: {problem}",
                )
        problem = grammar_problem(tokenizer, self.lark)
        if problem:
            raise ConstraintError(
                f"The engine has no grammar for these {len(lowered)} schemas together: {problem}",
            )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is not a number of JSON")
