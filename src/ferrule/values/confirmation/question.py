"""What a person is asked, and what they decide.

A question is bound to what it shows: its id comes from its run, its place in it, the tool's definition and the arguments. A decision names
that id and carries the digest of what was shown, so that it never applies to anything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule.errors import DecisionError, shown
from ferrule.values.confirmation.form import agreed, filled, read_form
from ferrule.values.encoding.encode import json_bytes, json_text
from ferrule.values.record import Record, field, replace

if TYPE_CHECKING:
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.confirmation.policy import Grant

Status = Literal["pending", "approved", "rejected", "edited", "feedback"]
_YES, _NO = frozenset({"y", "yes"}), frozenset({"n", "no"})
_NUMBERED = re.compile(r"[0-9]+\.[0-9]+|gather#[0-9.]+")
"""Parts of a path that name a place, and no program."""


class Question(Record):
    """What a person is asked. `id` is given by the run."""

    kind: Literal["confirm", "clarify", "unknown", "input"]
    """`input`: an MCP server wants to know something before it goes on with a call; see `form` and `fill`."""
    text: str
    call: ToolCall
    """The call with the very arguments that will run, and the model's `intention` where it gave one."""
    id: str = ""
    fingerprint: str = ""
    """The digest of the tool's definition: name, description, schema, effect."""
    thought: str = ""
    """What the model thought when it made the call."""
    raw: Mapping[str, Any] | None = None
    """The arguments as the model wrote them; None where they are not known."""
    path: str = ""
    """Which nested program asks, as journal slots name it; empty for the outermost."""
    expires_s: float | None = None
    expires_at: float | None = None
    """When it counts as denied, in seconds since 1970; None for never. Given by the run."""
    server: str = ""
    """The MCP server that the tool lives on; empty for a local one."""
    original: str = ""
    """The tool's name on that server."""
    form: Mapping[str, Any] | None = None
    """What an `input` question wants to know: a JSON schema of an object with plain fields. None where a page is to be opened."""
    url: str = ""
    """The page that a person is asked to open, for an `input` question of that kind. Nothing opens it by itself."""

    @property
    def digest(self) -> str:
        """Names what is shown: the tool's definition and the arguments; for an `input` question also what is asked."""
        asked = [self.text, self.form, self.url] if self.kind == "input" else []
        return sha256(json_bytes([self.kind, self.call.name, self.fingerprint, self.call.args, *asked])).hexdigest()[:20]

    @property
    def inside(self) -> str:
        """The names of the nested programs that ask, outermost first: the path without its numbers. Empty for the outermost program."""
        return "/".join(each.partition(":")[0] for each in self.path.split("/") if each and not _NUMBERED.fullmatch(each))

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The arguments that are not as the model wrote them: name to (written, prepared); a value that is not there is None."""
        raw, args = self.raw, self.call.args
        if raw is None:
            return {}
        return {
            name: (raw.get(name), args.get(name))
            for name in {**args, **raw}
            if name not in raw or name not in args or raw[name] != args[name]
        }

    def approve(self, /, *, always: Grant | None = None, **edits: Any) -> Decision:
        """Run the call; with edits, run it with these arguments changed. `always` allows further calls too (see `Grant`).

        An `input` question is answered: with these fields, and the form's defaults for the others; a form of one boolean with true.
        """
        if self.kind == "input":
            return self.fill(edits or agreed(self.form))
        if edits:
            if always is not None:
                msg = "An approval with changed arguments is for this call alone: give `always=` with `approve()` as it is."
                raise DecisionError(msg)
            return self.edit(edits)
        return Decision(self.id, "approve", shown=self.digest, grant=self.bound(always) if always is not None else None)

    def bound(self, grant: Grant) -> Grant:
        """The grant for this very tool, and the arguments that are shown. Raises `DecisionError` where there is no call to consent to."""
        from ferrule.values.confirmation.policy import arguments_digest

        if self.kind != "confirm":
            msg = "A grant is for calls that ask before they run; this question is about one call alone."
            raise DecisionError(msg)
        same = arguments_digest(self.call.args)
        return replace(grant, tool=self.call.name, fingerprint=self.fingerprint, inside=self.inside, same=same)

    def edit(self, args: Mapping[str, Any]) -> Decision:
        """Run the call with these arguments changed, whatever they are named; the values of an `input` question.

        Raises `DecisionError` where none is changed, and where no call waits whose arguments could be.
        """
        if self.kind == "input":
            return self.fill(args)
        if not args:
            msg = "The edit changes nothing. Approve the call as it is, or deny it."
            raise DecisionError(msg)
        if self.kind == "unknown":
            msg = "This call may have run as it is: approve it to run it (again), give its result as a reply, or deny it."
            raise DecisionError(msg)
        if self.kind == "clarify":
            msg = "The model asks something, and no call waits: say the answer with `reply(text)`."
            raise DecisionError(msg)
        return Decision(self.id, "edit", args=dict(args), shown=self.digest)

    def fill(self, content: Mapping[str, Any] | None = None) -> Decision:
        """Answer an `input` question: values by the names of the form's fields; what is left out has the form's default.

        Raises `DecisionError` for a question of another kind. What does not fit the form is refused when the decision is put.
        """
        if self.kind != "input":
            msg = "Only a question of the kind `input` has a form to fill; approve, edit, deny or reply to this one."
            raise DecisionError(msg)
        return self.reply(json_text(filled(self.form, content or {})))

    def deny(self, reason: str = "") -> Decision:
        """Do not run the call; the model is told, with the reason."""
        return Decision(self.id, "deny", text=reason, shown=self.digest)

    def reply(self, text: str) -> Decision:
        """Do not run the call; the model gets this text as what came of it. To an `input` question: the fields, as a JSON object."""
        return Decision(self.id, "reply", text=text, shown=self.digest)

    def decide(self, said: str | bool | Mapping[str, Any] | Decision) -> Decision:
        """What was said, as a decision.

        "yes", "y", "no", "n" and booleans decide; a JSON object, or a mapping, changes arguments: `{"path": "b"}`, or
        `{"edit": {"name": ..., "args": {...}}}` with the same tool's name; anything else is told to the model, and nothing runs.
        Raises `DecisionError` for an edit that changes nothing, or names another tool.
        """
        if isinstance(said, Decision):
            return said
        if isinstance(said, bool):
            return self.approve() if said else self.deny()
        if isinstance(said, Mapping):
            return self._edited(said)
        if not isinstance(said, str):  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
            msg = f'A decision is "yes", "no", a JSON object of changed arguments, or text for the model; found {shown(said)}.'
            raise DecisionError(msg)
        word = said.strip()
        if self.kind == "clarify":
            return self.reply(word)
        if self.kind == "input" and word.casefold() not in _YES | _NO:
            return self.fill(read_form(self.form, word))
        if word.casefold() in _YES:
            return self.approve()
        if word.casefold() in _NO:
            return self.deny()
        found = _json_object(word)
        return self._edited(found) if found is not None else self.reply(word)

    def _edited(self, said: Mapping[str, Any]) -> Decision:
        if self.kind == "input":
            return self.fill(said)
        edit: Any = said.get("edit")
        if set(said) == {"edit"} and "edit" not in self.call.args and isinstance(edit, Mapping):
            form = cast("Mapping[str, Any]", edit)
            args: Any = form.get("args", {})
            if form.keys() - {"name", "args"} or not isinstance(args, Mapping):
                msg = f'An edit is {{"edit": {{"name": ..., "args": {{...}}}}}}; found {shown(dict(said))}.'
                raise DecisionError(msg)
            if form.get("name", self.call.name) != self.call.name:
                msg = f"An edit changes arguments, not the tool: the question is about `{self.call.name}`, the edit names {form['name']!r}."
                raise DecisionError(msg)
            said = cast("Mapping[str, Any]", args)
        return self.edit(said)


class Decision(Record):
    """An answer to one question, with who gave it. Two are equal when they decide the same."""

    question_id: str
    kind: Literal["approve", "edit", "deny", "reply", "revoke"]
    """`revoke` ends a grant, and answers no question: its id is `revoke:` and that of the question it was given with (`Run.revoke`)."""
    text: str = ""
    args: dict[str, Any] = field(default_factory=dict[str, Any])
    """The changed arguments of an edit, laid over those that were shown."""
    shown: str = field(default="", compare=False)
    """The digest of what was shown (`Question.digest`)."""
    by: str = field(default="", compare=False)
    """Who decided, as far as it was said."""
    via: str = field(default="", compare=False)
    """From where: a door's name, `grant:` and the id of the question it was given with, `expiry`, or `policy`."""
    at: float | None = field(default=None, compare=False)
    """When, in seconds since 1970."""
    grant: Grant | None = None
    """Consent to further calls, given along with it."""

    def __post_init__(self) -> None:
        if isinstance(self.grant, Mapping):  # as JSON has it
            from ferrule.values.confirmation.policy import Grant

            object.__setattr__(self, "grant", Grant(**cast("dict[str, Any]", self.grant)))

    @property
    def status(self) -> Status:
        """The decision in udspy's words."""
        return _STATUS[self.kind]

    def signed(self, by: str = "", via: str = "") -> Decision:
        """The same decision with who gave it, and from where."""
        return replace(self, by=by or self.by, via=via or self.via)


def confirmation_text(name: str, args: Mapping[str, Any], server: str = "", original: str = "") -> str:
    """The question a person is asked, as seed 001 words it; with the MCP server, and the tool's name there, where it is of one."""
    where = f" ({original!r} of the MCP server {server!r})" if server else ""
    return f"Confirm execution of {name}{where} with args: {json_text(dict(args))}? (yes/no)"


def fingerprint(declaration: Mapping[str, Any], effect: str) -> str:
    """Names a tool's definition: name, description, schema, and what a call does to the world."""
    return sha256(json_bytes([declaration, effect])).hexdigest()[:20]


_STATUS: dict[str, Status] = {"approve": "approved", "edit": "edited", "deny": "rejected", "reply": "feedback", "revoke": "rejected"}


def _json_object(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None
