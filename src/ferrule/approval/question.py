"""Questions to a person, and their decisions.

A question is bound to its content: its id depends on the run, the place in the run, the tool's
definition and the arguments. A decision contains that id and the digest of what was shown, so that
it never applies to another call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from ferrule.approval.input_form import agree_to_form, fill_form, json_or_none, read_form
from ferrule.approval.policy import Grant, arguments_digest
from ferrule.encoding.encode import digest_of, json_text
from ferrule.errors import DecisionError, shown
from ferrule.record import PartlyCompared
from ferrule.values.calls.call import ToolCall
from ferrule.values.slot import programs_in

DecisionStatus = Literal["pending", "approved", "rejected", "edited", "feedback"]
DECIDED = {
    "approve": "approved",
    "edit": "approved with changes",
    "deny": "denied",
    "reply": "answered",
    "revoke": "revoked",
}
"""The person's decision in words, by its kind."""
_YES, _NO = frozenset({"y", "yes"}), frozenset({"n", "no"})


class Question(Struct, frozen=True):
    """A question to a person.

    `approve`, `edit`, `deny`, `reply`, `fill` and `decide` make a `Decision` for `run.answer`.
    """

    kind: Literal["confirm", "clarify", "unknown", "input", "migration"]
    """What the question is about.

    - `confirm`: whether a call may run.
    - `clarify`: the model asks the person something.
    - `unknown`: a call began, and it is not known whether it ran.
    - `input`: an MCP server needs input before it continues a call; see `form` and `fill`.
    - `migration`: the call waited or had begun, and no longer fits the program, which has changed
      since: reply with its result, deny it, or edit its arguments.
    """
    text: str
    call: ToolCall
    """The call with the arguments that will run, and the model's `intention` if it gave one."""
    id: str = ""
    fingerprint: str = ""
    """The digest of the tool's definition: name, description, schema, effect."""
    thought: str = ""
    """The model's thought when it made the call."""
    raw: Mapping[str, Any] | None = None
    """The arguments as the model wrote them, or None if they are unknown."""
    path: str = ""
    """The path of the nested program that asks; empty for the outermost."""
    expires_s: float | None = None
    expires_at: float | None = None
    """The time from which the question counts as denied, in seconds since 1970; None for never.

    Set by the run."""
    server: str = ""
    """The MCP server of the tool; empty for a local tool."""
    original: str = ""
    """The tool's name on that server."""
    form: Mapping[str, Any] | None = None
    """For an `input` question: a JSON schema of an object with plain fields.

    None if a page must be opened instead."""
    url: str = ""
    """For an `input` question without a form, the page that a person must open.

    ferrule never opens it."""
    schema: Mapping[str, Any] | None = None
    """The JSON Schema of the tool's arguments, so that a form can be shown without the program.

    None if there is nothing to edit."""
    effect: str = ""
    """The tool's `effect`: what a call changes. Empty if no tool waits."""

    # Computed at each read, not kept: the arguments are a dict, and a change after the question was
    # shown must not pass under the digest of what the person saw.
    @property
    def digest(self) -> str:
        """A digest of what a person sees.

        That is the tool's definition and the arguments; for an `input` question also the text and
        the form. The texts of other questions may change with a release of ferrule.
        """
        content: list[Any] = [self.kind, self.call.name, self.fingerprint, self.call.args]
        if self.kind == "input":
            content += [self.text, self.form, self.url]
        return digest_of(content, 20)

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
        for name in {**args, **raw}:
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
            raise DecisionError(
                "This call no longer fits the program, so it cannot run as shown: "
                "edit it, give its result as a reply, or deny it."
            )
        grant = None
        if always is not None:
            grant = self.bound(always)
        return Decision(self.id, "approve", shown=self.digest, grant=grant)

    def bound(self, grant: Grant) -> Grant:
        """The grant, bound to this tool and the arguments shown.

        Raises `DecisionError` if the question is not about consent to a call.
        """
        given: Any = grant
        if not isinstance(given, Grant):  # users pass True
            raise DecisionError(f"`always` takes a `Grant(...)`, found {shown(given)}.")
        if self.kind != "confirm":
            raise DecisionError(
                "A grant is for calls that ask before they run; "
                "this question is about one call alone."
            )
        return replace(
            given,
            tool=self.call.name,
            fingerprint=self.fingerprint,
            inside=self.inside,
            same=arguments_digest(self.call.args),
        )

    def edit(self, args: Mapping[str, Any]) -> Decision:
        """Approve the call with these arguments changed.

        For an `input` question, fill the form with them. Raises `DecisionError` for an empty edit,
        and for a question that has no call to edit.
        """
        given: Any = args
        if not isinstance(given, Mapping):  # users pass what a page has sent
            raise DecisionError(
                "An edit takes the changed arguments by name, "
                f"such as `question.edit({{'amount': 3}})`; found {shown(given)}."
            )
        if self.kind == "input":
            return self.fill(args)
        if not args:
            raise DecisionError("The edit changes nothing. Approve the call, or deny it.")
        if self.kind == "unknown":
            raise DecisionError(
                "This call may have run already: approve it to run it (again), "
                "give its result as a reply, or deny it."
            )
        if self.kind == "clarify":
            raise DecisionError("No call waits for this question: answer it with `reply(text)`.")
        return Decision(self.id, "edit", args=dict(args), shown=self.digest)

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

    def deny(self, reason: str = "") -> Decision:
        """Deny the call: it does not run, and the model sees the reason."""
        return Decision(self.id, "deny", text=reason, shown=self.digest)

    def reply(self, text: str) -> Decision:
        """Give the model this text as the call's result, without running it.

        For an `input` question, the text has the fields, as a JSON object.
        """
        return Decision(self.id, "reply", text=text, shown=self.digest)

    def decide(self, answer: str | bool | Mapping[str, Any] | Decision) -> Decision:
        """Make a decision from a person's words.

        "yes", "y", "no", "n" and booleans approve or deny. A mapping, or a JSON object, changes
        arguments: `{"path": "b"}`, or `{"edit": {"name": ..., "args": {...}}}` with the same tool's
        name. Any other text is a reply to the model, and nothing runs. Raises `DecisionError` for
        an edit that changes nothing or names another tool.
        """
        if isinstance(answer, Decision):
            return answer
        if isinstance(answer, bool):
            if answer:
                return self.approve()
            return self.deny()
        if isinstance(answer, Mapping):
            return self._edit_as_answered(answer)
        given: Any = answer
        if not isinstance(given, str):
            raise DecisionError(
                'A decision is "yes", "no", a JSON object of changed arguments, '
                f"or text for the model; found {shown(given)}."
            )
        return self._decide_by_text(given.strip())

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
            return self._edit_as_answered(cast("dict[str, Any]", value))
        return self.reply(text)

    def _edit_as_answered(self, answer: Mapping[str, Any]) -> Decision:
        """The decision for changed arguments by name, or for an object with the key `edit`."""
        if self.kind == "input":
            return self.fill(answer)
        edit: Any = answer.get("edit")
        # A tool may have an argument named `edit`: then the object has arguments by name.
        is_wrapped = set(answer) == {"edit"} and "edit" not in self.call.args
        if not is_wrapped or not isinstance(edit, Mapping):
            return self.edit(answer)
        wrapped = cast("Mapping[str, Any]", edit)
        args: Any = wrapped.get("args", {})
        if wrapped.keys() - {"name", "args"} or not isinstance(args, Mapping):
            raise DecisionError(
                'An edit is {"edit": {"name": ..., "args": {...}}}; '
                f"found {shown(dict(answer))}."
            )
        name = wrapped.get("name", self.call.name)
        if name != self.call.name:
            raise DecisionError(
                "An edit changes arguments, not the tool: the question is about "
                f"`{self.call.name}`, the edit names {name!r}."
            )
        return self.edit(cast("Mapping[str, Any]", args))


class Decision(PartlyCompared, Struct, frozen=True):
    """An answer to one question, with its author.

    Decisions with the same content are equal, regardless of author.
    """

    _not_compared = frozenset({"shown", "by", "via", "at"})

    question_id: str
    kind: Literal["approve", "edit", "deny", "reply", "revoke"]
    """`revoke` ends a grant and answers no question (`Run.revoke`).

    Its id is `revoke:` and the id of the grant's question."""
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

    def __post_init__(self) -> None:
        if isinstance(self.grant, Mapping):  # read from JSON
            force_setattr(self, "grant", Grant(**cast("dict[str, Any]", self.grant)))

    @property
    def status(self) -> DecisionStatus:
        """The decision in udspy's words."""
        return _STATUS[self.kind]

    def signed(self, by: str = "", via: str = "") -> Decision:
        """The same decision, with its author and its source."""
        return replace(self, by=by or self.by, via=via or self.via)


_STATUS: dict[str, DecisionStatus] = {
    "approve": "approved",
    "edit": "edited",
    "deny": "rejected",
    "reply": "feedback",
    "revoke": "rejected",
}
