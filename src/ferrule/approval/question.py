"""Questions to a person, and their decisions.

A question is bound to its content: its id depends on the run, the place in the run, the tool's
definition and the arguments. A decision contains that id and the digest of what was shown, so that
it never applies to another call.

A person decides with `approve`, `edit`, `deny`, `reply` and `fill`, or with words, which `decide`
turns into one of them. Every question can be denied. For the rest its kind decides:

| kind        | `approve`           | `edit`              | `reply`               |
|-------------|---------------------|---------------------|-----------------------|
| `confirm`   | runs the call       | runs it, changed    | is the call's result  |
| `clarify`   | answers "yes"       | raises              | is the person's answer|
| `unknown`   | runs the call again | raises              | is the call's result  |
| `input`     | fills the form      | fills the form      | is the filled form    |
| `migration` | raises              | runs it, changed;   | is the call's result  |
|             |                     | or raises: see      |                       |
|             |                     | `takes_edit`        |                       |
| `result`    | raises              | raises              | is the call's result  |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from ferrule.approval.input_form import (
    agree_to_form,
    fill_form,
    json_or_none,
    read_form,
    result_of_text,
)
from ferrule.approval.paths import folder_of, is_path_argument, under
from ferrule.approval.policy import Grant, arguments_digest
from ferrule.encoding.encode import digest_of, is_exact, is_masked, json_text
from ferrule.errors import DecisionError, shown
from ferrule.record import CheckedStruct, PartlyCompared
from ferrule.schema.nodes import is_list, members
from ferrule.values.calls.call import ToolCall
from ferrule.values.calls.secrets import STARS
from ferrule.values.slot import programs_in

QuestionKind = Literal["confirm", "clarify", "unknown", "input", "migration", "result"]
DecisionStatus = Literal["pending", "approved", "rejected", "edited", "feedback"]
DECIDED = {
    "approve": "approved",
    "edit": "approved with changes",
    "deny": "denied",
    "reply": "answered",
    "revoke": "revoked",
    "say": "said",
    "say_after": "said",
    "cancel": "cancelled",
}
"""A decision in words that show it to a person, by its kind."""
_STATUS: dict[str, DecisionStatus] = {
    "approve": "approved",
    "edit": "edited",
    "deny": "rejected",
    "reply": "feedback",
    "revoke": "rejected",
    "say": "feedback",
    "say_after": "feedback",
    "cancel": "rejected",
}
"""A decision in udspy's words, by its kind."""
_YES, _NO = frozenset({"y", "yes"}), frozenset({"n", "no"})


class Subject(Struct, frozen=True):
    """What a question is about: a decision fits each question about the same, whatever its text."""

    kind: QuestionKind
    call: ToolCall
    """The call with the arguments that people see."""
    digest: str
    """See `Question.digest`."""

    @classmethod
    def of(
        cls, kind: QuestionKind, call: ToolCall, fingerprint: str = "", form: Sequence[Any] = ()
    ) -> Subject:
        """The subject of a question about a call, of a tool with this fingerprint."""
        return cls(kind, call, digest_of([kind, call.name, fingerprint, call.args, *form], 20))


class Question(Struct, metaclass=CheckedStruct, frozen=True):
    """A question to a person.

    `approve`, `edit`, `deny`, `reply`, `fill` and `decide` make a `Decision` for `run.answer`.
    """

    kind: QuestionKind
    """What the question is about.

    - `confirm`: whether a call may run.
    - `clarify`: the model asks the person something.
    - `unknown`: a call began, and it is not known whether it ran.
    - `input`: an MCP server needs input before it continues a call; see `form` and `fill`.
    - `migration`: the call waited or had begun, and no longer fits the program, which has changed
      since: reply with its result, deny it, or edit its arguments if it had not begun.
    - `result`: the call has begun, and its result comes from outside; see `deliver`.
    """
    text: str
    call: ToolCall
    """The call with the arguments that will run, and the model's `intention` if it gave one."""
    id: str = ""
    """Names the question in its run and in decisions. Set by the run."""
    fingerprint: str = ""
    """The digest of the tool's definition: name, description, schema, effect."""
    thought: str = ""
    """The model's thought when it made the call."""
    raw: Mapping[str, Any] | None = None
    """The arguments as the model wrote them, or None if they are unknown."""
    path: str = ""
    """The path of the nested program that asks; empty for the outermost."""
    expires_s: float | None = None
    """Seconds after which the question counts as denied; None for never. The program sets it."""
    expires_at: float | None = None
    """The time from which the question counts as denied, in seconds since 1970; None for never.

    Set by the run, from `expires_s` and the time of the question."""
    server: str = ""
    """The MCP server of the tool; empty for a local tool."""
    original: str = ""
    """The tool's name on that server."""
    form: Mapping[str, Any] | None = None
    """For an `input` question, the JSON Schema of an object with plain fields.

    None if the person must open a page instead (`url`)."""
    url: str = ""
    """For an `input` question without a form, the page that a person must open.

    ferrule never opens it."""
    schema: Mapping[str, Any] | None = None
    """The JSON Schema of the tool's arguments, so that a form can be shown without the program.

    None if there is nothing to edit."""
    effect: str = ""
    """The tool's `effect`: what a call changes. Empty if no tool waits."""
    description: str = ""
    """The tool's description."""
    note: str = ""
    """The start of the text: what a person must know besides the call."""
    key: str = ""
    """For a `result` question, the key by which its result is delivered."""
    returns: Mapping[str, Any] | None = None
    """For a `result` question, the JSON Schema of the result: the tool's declared return type.

    None if the tool declares none: any JSON value fits."""
    by_page: bool = False
    """For a `result` question, whether the page of a chat may give the result."""

    # Computed at each read, not once: the arguments are a dict. If code changes them after the
    # question was shown, the digest must change too, so that the decision no longer fits.
    @property
    def digest(self) -> str:
        """A digest of what a person sees.

        That is the tool's definition and the arguments; for an `input` question also the text and
        the form. The texts of other questions may change with a release of ferrule. A `result`
        question has the key and the type of the result instead of the tool's definition: the call
        has begun, so a result fits it after the tool has changed, too.
        """
        return self.subject.digest

    @property
    def subject(self) -> Subject:
        """What the question is about; see `digest`."""
        if self.kind == "result":
            awaited = [self.kind, self.call.name, self.key, self.returns]
            return Subject(self.kind, self.call, digest_of(awaited, 20))
        form = (self.text, self.form, self.url) if self.kind == "input" else ()
        return Subject.of(self.kind, self.call, self.fingerprint, form)

    @property
    def ways(self) -> str:
        """How code answers it, for the error of a plain call."""
        match self.kind:
            case "clarify":
                return "`run.answer(question.reply(text))`, or with `.deny()`"
            case "input":
                return "`run.answer(question.fill({...}))`, or with `.deny()`"
            case "migration" if self.takes_edit:
                return "`run.answer(question.edit({...}))`, or with `.reply(text)` or `.deny()`"
            case "migration":
                return "`run.answer(question.reply(text))`, or with `.deny()`"
            case "result":
                return f"`run.deliver({self.key!r}, value)`, or with `run.answer(question.deny())`"
            case _:
                return "`run.answer(question.approve())`, or with `.deny()` or `.reply(text)`"

    @property
    def takes_edit(self) -> bool:
        """Whether the call may run with other arguments.

        A call that may have run already may not, nor one whose tool is gone: a `migration` question
        about such a call has no schema.
        """
        return self.kind == "confirm" or (self.kind == "migration" and self.schema is not None)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The arguments that are shown as stars, because their Python type is secret.

        None of an MCP server's tool: its values are plain JSON.
        """
        if self.server:
            return ()
        return tuple([name for name, value in self.call.args.items() if is_masked(value)])

    @property
    def inside(self) -> str:
        """The names of the nested programs that ask, outermost first: the path without its numbers.

        Empty for the outermost program.
        """
        return "/".join(programs_in(self.path))

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The arguments that validation changed, as (what the model wrote, the validated value).

        A missing value is None.
        """
        raw, args = self.raw, self.call.args
        if raw is None:
            return {}
        changes: dict[str, tuple[Any, Any]] = {}
        for name in {**args, **raw}:  # the names of both, in order
            # An argument that is missing on one side differs from one that is None.
            is_in_both = name in raw and name in args
            if not is_in_both or raw[name] != args[name]:
                changes[name] = raw.get(name), args.get(name)
        return changes

    def approve(self, /, *, always: Grant | None = None, **edits: Any) -> Decision:
        """Approve the call, or approve it with changed arguments (`edits`).

        `always` allows further calls too (see `Grant`). For an `input` question, the edits are the
        form's fields, and defaults apply to the others; a single boolean becomes true.
        """
        if self.kind == "input":
            return self.fill(edits or agree_to_form(self.form))
        if edits:
            if always is not None:
                raise DecisionError(
                    "An approval with changed arguments is for this call alone: "
                    "pass `always=` without changes."
                )
            return self.edit(edits)
        if self.kind == "migration":
            ways = "edit it, give its result as a reply, or deny it."
            if not self.takes_edit:
                ways = "give its result as a reply, or deny it."
            raise DecisionError(
                f"This call no longer fits the program, so it cannot run as shown: {ways}"
            )
        if self.kind == "result":
            raise self._waits_for_result()
        grant = None
        if always is not None:
            grant = self.bound(always)
        return Decision(self.id, "approve", shown=self.digest, grant=grant)

    def bound(self, grant: Grant) -> Grant:
        """The grant, bound to this tool and the arguments shown.

        Raises `DecisionError` if the question is not about consent to a call.
        """
        # Users pass True.
        if not isinstance(grant, Grant):
            raise DecisionError(f"`always` takes a `Grant(...)`, found {shown(grant)}.")
        if self.kind != "confirm":
            raise DecisionError(
                "A grant is for calls that ask before they run; "
                "this question is about one call alone."
            )
        if not isinstance(grant.args, str):
            self._check_names(grant.args, "grant")
        return replace(
            grant,
            tool=self.call.name,
            fingerprint=self.fingerprint,
            inside=self.inside,
            same=arguments_digest(self.call.args),
        )

    def _check_names(self, names: Iterable[str], what: str) -> None:
        """Raise `DecisionError` for an argument that the tool does not have: no call would fit."""
        if not self.schema or self.schema.get("additionalProperties"):
            return
        known = {**self.schema.get("properties", {}), **self.call.args}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise DecisionError(
                f"`{self.call.name}` has no argument `{unknown[0]}`, so the {what} would be for no "
                f"call. It has: {', '.join(f'`{name}`' for name in known) or 'none'}."
            )

    def grant_for_folder(self) -> Grant | None:
        """A grant for further calls whose paths lie in the same folders; None if there is none.

        An argument is a path by its schema, its name or its look; the others may then have any
        value. There is no such grant if a path is in doubt or its folder is a whole disk, or if a
        tool of an MCP server reads a relative path from a folder that only the server knows.
        """
        if self.kind != "confirm":
            return None
        properties = members(dict(self.schema or {}), "properties")
        folders: dict[str, Any] = {}
        for name, value in self.call.args.items():
            if not is_path_argument(name, value, properties.get(name)):
                continue
            folder = ""
            if isinstance(value, str):
                folder = folder_of(value)
            if not folder or (self.server and not Path(folder).is_absolute()):
                return None
            folders[name] = under(folder)
        if not folders:
            return None
        return Grant(args=folders)

    def edit(self, args: Mapping[str, Any], *, removed: Iterable[str] = ()) -> Decision:
        """Approve the call with these arguments changed, and without those that are `removed`.

        For an `input` question, fill the form with them. Raises `DecisionError` for an empty edit,
        for one that removes an argument that the call does not have, and for a question that has
        no call to edit.
        """
        # Users pass what a page has sent, which may be anything.
        if not isinstance(args, Mapping):
            raise DecisionError(
                "An edit takes the changed arguments by name, "
                f"such as `question.edit({{'amount': 3}})`; found {shown(args)}."
            )
        if isinstance(removed, str) or not isinstance(removed, Iterable):
            raise DecisionError(
                f"`removed` lists the names of arguments, such as ['note']; found {shown(removed)}."
            )
        if self.kind == "input":
            return self.fill(args)
        removed_names = tuple(removed)
        if not args and not removed_names:
            raise DecisionError("The edit changes nothing. Approve the call, or deny it.")
        for name in removed_names:
            if name in args or name not in self.call.args:
                raise DecisionError(
                    f"An edit removes arguments that the call has, and does not change them too; "
                    f"found {shown(name)}."
                )
        if self.kind == "unknown":
            raise DecisionError(
                "This call may have run already: approve it to run it (again), "
                "give its result as a reply, or deny it."
            )
        if self.kind == "migration" and not self.takes_edit:
            raise DecisionError(
                "This call takes no other arguments, because it may have run already or its tool "
                "is gone: give its result as a reply, or deny it."
            )
        if self.kind == "clarify":
            raise DecisionError("No call waits for this question: answer it with `reply(text)`.")
        if self.kind == "result":
            raise self._waits_for_result()
        self._check_names(args, "edit")
        return Decision(self.id, "edit", args=dict(args), removed=removed_names, shown=self.digest)

    def fill(self, content: Mapping[str, Any] | None = None) -> Decision:
        """Answer an `input` question with values by field.

        The form's defaults apply to the other fields. Raises `DecisionError` for a question of
        another kind. Values that do not fit the form are refused by `Run.answer`.
        """
        if self.kind != "input":
            raise DecisionError(
                "Only a question of the kind `input` has a form to fill; "
                "approve, edit, deny or reply to this one."
            )
        return self.reply(json_text(fill_form(self.form, content or {})))

    def deliver(self, value: Any) -> Decision:
        """Answer a `result` question with the result, which is JSON data.

        Raises `DecisionError` for a question of another kind, and for a value that JSON would
        change. A value that does not fit the tool's return type is refused by `Run.answer`.
        """
        if self.kind != "result":
            raise DecisionError(
                f"The question about `{self.call.name}` waits for a person, not for a result from "
                "outside: approve, edit, deny or reply to it."
            )
        if not is_exact(value):
            raise DecisionError(
                f"The result of `{self.call.name}` is delivered as JSON data; found {shown(value)}."
            )
        return Decision(self.id, "reply", text=json_text(value), shown=self.digest)

    def _waits_for_result(self) -> DecisionError:
        return DecisionError(
            f"The call of `{self.call.name}` has begun, and waits for its result from outside: "
            f"deliver it with run.deliver({self.key!r}, value), or deny the question, and the "
            "model reads that no result comes."
        )

    def deny(self, reason: str = "") -> Decision:
        """Deny the call: it does not run, and the model sees the reason."""
        return Decision(self.id, "deny", text=reason, shown=self.digest)

    def reply(self, text: str) -> Decision:
        """Give the model this text as the call's result, without running it.

        For an `input` question, the text has the fields, as a JSON object. For a `result` question
        it is the result: as JSON if it is JSON that fits the tool's return type, else as text.
        """
        # Users pass what a page has sent, which may be anything.
        if not isinstance(text, str):
            raise DecisionError(
                f"A reply is a text; found {shown(text)}. A result that is JSON data is delivered: "
                "`run.deliver(key, value)`."
            )
        if self.kind == "result":
            return self.deliver(result_of_text(self.returns, text))
        return Decision(self.id, "reply", text=text, shown=self.digest)

    def decide(self, answer: str | bool | Mapping[str, Any] | Decision) -> Decision:
        """Make a decision from a person's words.

        "yes", "y", "no", "n" and booleans approve or deny. A mapping, or a JSON object, changes
        arguments: `{"path": "b"}`, or `{"edit": {"name": ..., "args": {...}, "removed": [...]}}`
        with the same tool's name. Any other text is a reply to the model, and nothing runs. For a
        `result` question, any answer is the result. Raises `DecisionError` for an edit that
        changes nothing or names another tool.
        """
        if isinstance(answer, Decision):
            return answer
        if self.kind == "result":
            if isinstance(answer, str):
                return self.reply(answer)
            return self.deliver(answer)
        if isinstance(answer, bool):
            if answer:
                return self.approve()
            return self.deny()
        if isinstance(answer, Mapping):
            return self._decide_by_object(answer)
        if not isinstance(answer, str):
            raise DecisionError(
                'A decision is "yes", "no", a JSON object of changed arguments, '
                f"or text for the model; found {shown(answer)}."
            )
        return self._decide_by_text(answer.strip())

    def _decide_by_text(self, text: str) -> Decision:
        word = text.casefold()
        if self.kind == "clarify":
            return self.reply(text)
        if self.kind == "input" and word not in _YES | _NO:
            return self.fill(read_form(self.form, text))
        if word in _YES:
            return self.approve()
        if word in _NO:
            return self.deny()
        value = json_or_none(text)
        if isinstance(value, dict):
            return self._decide_by_object(cast("dict[str, Any]", value))
        return self.reply(text)

    def _decide_by_object(self, answer: Mapping[str, Any]) -> Decision:
        """The decision for changed arguments by name, or for an object with the key `edit`.

        An `input` question takes the object as the fields of its form.
        """
        if self.kind == "input":
            return self.fill(answer)
        edit: Any = answer.get("edit")
        # A tool may have an argument named `edit`: then the object has arguments by name.
        is_wrapped = set(answer) == {"edit"} and "edit" not in self.call.args
        if not is_wrapped or not isinstance(edit, Mapping):
            return self.edit(answer)
        wrapped = cast("Mapping[str, Any]", edit)
        args: Any = wrapped.get("args", {})
        removed: Any = wrapped.get("removed", [])
        is_edit = isinstance(args, Mapping) and is_list(removed)
        if wrapped.keys() - {"name", "args", "removed"} or not is_edit:
            raise DecisionError(
                'An edit is {"edit": {"name": ..., "args": {...}, "removed": [...]}}; '
                f"found {shown(dict(answer))}."
            )
        name = wrapped.get("name", self.call.name)
        if name != self.call.name:
            raise DecisionError(
                "An edit changes arguments, not the tool: the question is about "
                f"`{self.call.name}`, the edit names {name!r}."
            )
        return self.edit(cast("Mapping[str, Any]", args), removed=removed)


class Decision(PartlyCompared, Struct, metaclass=CheckedStruct, frozen=True):
    """An answer to one question, with its author.

    Decisions with the same content are equal, regardless of author.
    """

    _not_compared = frozenset({"shown", "by", "via", "at"})

    question_id: str
    kind: Literal["approve", "edit", "deny", "reply", "revoke", "say", "say_after", "cancel"]
    """What was decided. Three kinds answer no question.

    `revoke` ends a grant (`Run.revoke`); its `question_id` is `revoke:` and the id of the grant's
    question. `say` is a message to the run, for its next request, and `say_after` one for after its
    answer (`Run.say`); the `question_id` is `say:` and a number. `cancel` ends one call
    (`Run.cancel_call`); the `question_id` is `cancel:`, how often the call has begun, and its slot.
    It also answers the question with which a call waits for its result from outside."""
    text: str = ""
    args: dict[str, Any] = field(default_factory=dict[str, Any])
    """The changed arguments of an edit; the others stay as shown."""
    shown: str = ""
    """The digest of what was shown (`Question.digest`)."""
    by: str = ""
    """Who decided, if known."""
    via: str = ""
    """The source of the decision.

    It is `grant:` and the id of the grant's question, `expiry`, `policy`, or a caller's word."""
    at: float | None = None
    """The time of the decision, in seconds since 1970."""
    grant: Grant | None = None
    """Consent to further calls, given with this decision."""
    removed: tuple[str, ...] = ()
    """The arguments that an edit leaves out; the tool's defaults then apply."""

    def __post_init__(self) -> None:
        if isinstance(self.grant, Mapping):  # read from JSON
            force_setattr(self, "grant", Grant(**cast("dict[str, Any]", self.grant)))
        if is_list(self.removed):
            force_setattr(self, "removed", tuple(self.removed))

    @property
    def status(self) -> DecisionStatus:
        """The decision in udspy's words."""
        return _STATUS[self.kind]

    def masked(self, secrets: Collection[str]) -> Decision:
        """The decision as people see it: with stars for these arguments."""
        if self.args.keys().isdisjoint(secrets):
            return self
        return replace(
            self,
            args={name: STARS if name in secrets else self.args[name] for name in self.args},
        )

    def signed(self, by: str = "", via: str = "") -> Decision:
        """The same decision, with its author and its source.

        Raises `DecisionError` if one of them is not text.
        """
        author, source = check_author(by or self.by, via or self.via)
        return replace(self, by=author, via=source)


def check_author(by: Any, via: Any) -> tuple[str, str]:
    """The author of a decision and its source, as plain text.

    A store reads back only text. Raises `DecisionError` for another type, such as the number of a
    user.
    """
    for name, value in (("by", by), ("via", via)):
        if not isinstance(value, str):
            raise DecisionError(
                f"`{name}` says in words who decides or from where; found {shown(value)}. "
                f"Pass a text, such as `{name}=str(...)`."
            )
    return str.__str__(by), str.__str__(via)  # of a subclass, the text alone
