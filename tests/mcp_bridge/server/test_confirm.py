"""Calls that need a person's consent, in both eras."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from agent_script import fields, native_step
from mcp_talk import ERAS, call, refusal, talk, text
from pydantic import Field

import ferrule
from ferrule import ReAct, Tool
from ferrule.errors import ConfigurationError
from ferrule.mcp_bridge import MCPApp
from ferrule.mcp_bridge.server import questions
from ferrule.testing import ScriptedLM

types = pytest.importorskip("mcp_types", reason="needs the extra: pip install 'ferrule[mcp]'")

SERVER = Path(__file__).parents[2] / "asking_server.py"


class Files:
    """A tool that deletes, what it deleted, and what the client's user was asked."""

    def __init__(self, needs: object = True, **options: object) -> None:
        self.deleted: list[str] = []
        self.asked: list[str] = []
        self.app = MCPApp([Tool(self.delete, require_confirmation=needs)], **options)

    def delete(self, path: str) -> str:
        self.deleted.append(path)
        return f"deleted {path}"

    def answering(self, action: str, content: dict | None = None):
        async def answer(context, params):
            self.asked.append(params.message)
            return types.ElicitResult(action=action, content=content)

        return {"elicitation_callback": answer}


@pytest.mark.parametrize("era", ERAS)
def test_with_consent_the_call_is_run_once(era: str) -> None:
    """What the person sees are the arguments as they will run."""
    files = Files()
    result = call(
        files.app,
        era,
        "delete",
        {"path": "a"},
        **files.answering("accept", {"approve": True}),
    )
    assert text(result) == "deleted a"
    assert files.deleted == ["a"]
    assert files.asked == ['Confirm execution of delete with args: {"path":"a"}?']


@pytest.mark.parametrize("era", ERAS)
def test_a_default_that_a_factory_makes_runs_as_it_was_shown(era: str) -> None:
    """From 2026-07-28 on, the client calls a second time, and the check of that call makes another
    one.
    """
    files = Files()
    ordered: list[str] = []

    def order(number: str = Field(default_factory=lambda: uuid4().hex), of: str = "{ink:") -> str:
        ordered.append(number)
        return of

    app = MCPApp([Tool(order, require_confirmation=True)])
    assert (
        text(call(app, era, "order", {}, **files.answering("accept", {"approve": True}))) == "{ink:"
    )
    assert files.asked == [
        f'Confirm execution of order with args: {{"number":"{ordered[0]}","of":"{{ink:"}}?',
    ]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("action", "content"),
    [
        pytest.param("accept", {"approve": False}, id="no"),
        pytest.param("accept", {"approve": "true"}, id="a text"),
        pytest.param("accept", {}, id="nothing"),
        pytest.param("accept", None, id="no content"),
        pytest.param("decline", None, id="declined"),
        pytest.param("decline", {"approve": True}, id="declined with content"),
        pytest.param("cancel", None, id="closed"),
    ],
)
def test_anything_but_a_yes_is_a_no(era: str, action: str, content: dict | None) -> None:
    files = Files()
    result = call(files.app, era, "delete", {"path": "a"}, **files.answering(action, content))
    assert result.is_error
    assert "not approved" in text(result)
    assert files.deleted == []


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_cannot_ask_gets_an_error_and_the_tool_is_not_run(era: str) -> None:
    files = Files()
    result = call(files.app, era, "delete", {"path": "a"})
    assert result.is_error
    assert "cannot ask" in text(result)
    assert files.deleted == []


@pytest.mark.parametrize("era", ERAS)
def test_a_rule_decides_by_the_arguments(era: str) -> None:
    files = Files(lambda args: args["path"].startswith("/"))
    no = files.answering("decline")
    assert text(call(files.app, era, "delete", {"path": "a"}, **no)) == "deleted a"
    assert call(files.app, era, "delete", {"path": "/a"}, **no).is_error
    assert files.deleted == ["a"]
    assert len(files.asked) == 1


def test_where_the_rule_fails_the_call_is_not_run() -> None:
    """Ours."""
    files = Files(lambda args: args["none"])
    result = call(
        files.app,
        ERAS[1],
        "delete",
        {"path": "a"},
        **files.answering("accept", {"approve": True}),
    )
    assert result.is_error
    assert files.deleted == files.asked == []


@pytest.mark.parametrize("era", ERAS)
def test_bad_arguments_are_told_before_anybody_is_asked(era: str) -> None:
    files = Files()
    assert call(
        files.app,
        era,
        "delete",
        {},
        **files.answering("accept", {"approve": True}),
    ).is_error
    assert files.asked == []


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("needs", [True, "host"], ids=["any", "host-confirmed"])
def test_a_host_decides_instead_of_the_clients_user(era: str, needs: object) -> None:
    asked = []

    async def decide(name: str, arguments: dict) -> bool:
        asked.append((name, arguments))
        return arguments["path"] == "a"

    files = Files(needs, confirm=decide)
    yes = files.answering("accept", {"approve": True})
    assert text(call(files.app, era, "delete", {"path": "a"}, **yes)) == "deleted a"
    assert call(files.app, era, "delete", {"path": "b"}, **yes).is_error
    assert asked == [("delete", {"path": "a"}), ("delete", {"path": "b"})]
    assert files.asked == []


@pytest.mark.parametrize("era", ERAS)
def test_an_answer_of_a_client_is_no_proof_of_a_person_for_host_confirmed_tools(era: str) -> None:
    files = Files("host")
    result = call(
        files.app,
        era,
        "delete",
        {"path": "a"},
        **files.answering("accept", {"approve": True}),
    )
    assert result.is_error
    assert "only the host" in text(result)
    assert files.deleted == files.asked == []


def asking(app: MCPApp, arguments: dict, **more: object) -> object:
    """One round of a call by hand, in the newer era."""

    async def act(connected):
        return await connected.session.call_tool(
            "delete",
            arguments,
            allow_input_required=True,
            **more,
        )

    async def never(context, params):  # declares that it can ask
        raise AssertionError

    return talk(app, ERAS[1], act, elicitation_callback=never)


YES = {"approve": types.ElicitResult(action="accept", content={"approve": True})}


def test_an_answer_to_a_question_that_was_not_put_counts_for_nothing() -> None:
    """Consent comes with the sealed state."""
    files = Files()
    found = asking(files.app, {"path": "a"}, input_responses=YES)
    assert found.result_type == "input_required"
    assert files.deleted == []


@pytest.mark.parametrize("state", ["call:delete", "v1.AAAA", ""], ids=["plain", "forged", "empty"])
def test_a_state_that_is_not_ours_is_refused(state: str) -> None:
    """M70 tampered-state, M80."""
    from mcp.shared.exceptions import MCPError

    files = Files()

    async def act(connected):
        with pytest.raises(MCPError) as raised:
            await connected.session.call_tool(
                "delete",
                {"path": "a"},
                input_responses=YES,
                request_state=state,
                allow_input_required=True,
            )
        return raised.value.error.code

    assert talk(files.app, ERAS[1], act) == -32602
    assert files.deleted == []


def test_consent_is_for_these_arguments_only() -> None:
    from mcp.shared.exceptions import MCPError

    files = Files()
    state = asking(files.app, {"path": "a"}).request_state

    async def act(connected):
        with pytest.raises(MCPError):
            await connected.session.call_tool(
                "delete",
                {"path": "b"},
                input_responses=YES,
                request_state=state,
                allow_input_required=True,
            )

    talk(files.app, ERAS[1], act)
    assert files.deleted == []


@pytest.mark.parametrize("shared", [True, False], ids=["one key", "keys of their own"])
def test_another_worker_with_the_same_keys_takes_the_answer(shared: bool) -> None:
    """Multi-worker `request_state` keys."""
    from mcp.shared.exceptions import MCPError

    keys = {"state_keys": ["k" * 32]} if shared else {}
    first, second = Files(**keys), Files(**keys)
    state = asking(first.app, {"path": "a"}).request_state

    async def act(connected):
        return await connected.session.call_tool(
            "delete",
            {"path": "a"},
            input_responses=YES,
            request_state=state,
            allow_input_required=True,
        )

    async def refused(connected):
        with pytest.raises(MCPError):
            await act(connected)

    talk(second.app, ERAS[1], act if shared else refused, **second.answering("accept"))
    assert second.deleted == (["a"] if shared else [])


@pytest.mark.parametrize(
    ("options", "is_taken"),
    [({}, False), ({"state_ttl_s": 86400}, True)],
    ids=["ten minutes", "a day"],
)
def test_an_answer_that_comes_an_hour_later_is_taken_if_the_state_is_valid_for_so_long(
    monkeypatch: pytest.MonkeyPatch,
    options: dict,
    is_taken: bool,
) -> None:
    from mcp.server import request_state
    from mcp.shared.exceptions import MCPError

    files = Files(**options)
    state = asking(files.app, {"path": "a"}).request_state
    now = time.time() + 3600
    monkeypatch.setattr(request_state, "time", SimpleNamespace(time=lambda: now))

    async def act(connected):
        arguments = {"input_responses": YES, "request_state": state, "allow_input_required": True}
        with nullcontext() if is_taken else pytest.raises(MCPError, match="expired"):
            await connected.session.call_tool("delete", {"path": "a"}, **arguments)

    talk(files.app, ERAS[1], act, **files.answering("accept"))
    assert files.deleted == (["a"] if is_taken else [])


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan")])
def test_a_state_is_valid_for_a_number_of_seconds(wrong: float) -> None:
    with pytest.raises(ConfigurationError, match="`state_ttl_s` is a number of seconds above 0"):
        MCPApp([], state_ttl_s=wrong)


def agent(files: list[str], steps: int = 1) -> MCPApp:
    """A program that wants to delete, which needs consent."""

    def delete(path: str) -> str:
        files.append(path)
        return f"deleted {path}"

    calls = [native_step("", "delete", {"path": str(k)}) for k in range(steps)]
    with ferrule.context(lm=ScriptedLM([*calls, native_step("", "finish", {"answer": "done"})])):
        return MCPApp(
            {"agent": ReAct("question -> answer", [Tool(delete, require_confirmation=True)])},
        )


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("steps", [1, 2])
def test_a_program_that_waits_for_consent_asks_the_clients_user_and_goes_on(
    era: str,
    steps: int,
) -> None:
    deleted, asked = [], []

    async def yes(context, params):
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"approve": True})

    result = call(agent(deleted, steps), era, "agent", {"question": "?"}, elicitation_callback=yes)
    assert text(result) == '{"answer":"done"}'
    assert deleted == [str(k) for k in range(steps)]
    assert len(asked) == steps
    assert all("delete" in each for each in asked)


@pytest.mark.parametrize("era", ERAS)
def test_a_program_goes_on_without_what_was_refused(era: str) -> None:
    deleted = []

    async def no(context, params):
        return types.ElicitResult(action="decline")

    assert (
        text(call(agent(deleted), era, "agent", {"question": "?"}, elicitation_callback=no))
        == '{"answer":"done"}'
    )
    assert deleted == []


@pytest.mark.parametrize("era", ERAS)
def test_a_program_that_cannot_ask_does_not_run_what_needs_consent(era: str) -> None:
    """It is told so, and goes on."""
    deleted = []
    result = call(agent(deleted), era, "agent", {"question": "?"})
    assert deleted == []
    assert text(result) == '{"answer":"done"}'


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("content", "told"),
    [({"name": "Ann"}, "[{"), ({"name": 7}, "not booked"), ({}, "not booked")],
    ids=["fits", "misfit", "nothing"],
)
def test_what_another_server_asks_an_agents_run_is_asked_of_its_own_client(
    tmp_path,
    era: str,
    content: dict,
    told: str,
) -> None:
    """The form goes through as it is; what does not fit it is a no."""
    asked = []

    async def answer(context, params):
        asked.append(params.requested_schema)
        return types.ElicitResult(
            action="accept",
            content=content if len(asked) == 1 else {"seats": 2},
        )

    hall = ferrule.MCPServer.stdio(
        sys.executable,
        [str(SERVER), "modern", str(tmp_path / "calls")],
        trust=True,
        confirm=False,
    )
    steps = [{"name": "book", "args": {}}, {"name": "finish", "args": {"answer": "done"}}]
    lm = ScriptedLM(steps)
    program = ReAct("question -> answer", [hall])
    program.set_lm(lm)
    assert (
        text(
            call(
                MCPApp({"agent": program}),
                era,
                "agent",
                {"question": "?"},
                elicitation_callback=answer,
            ),
        )
        == '{"answer":"done"}'
    )
    assert asked[0]["required"] == ["name"]
    assert told in str(lm.requests[-1].messages[-1].content)
    hall.close()


def test_an_unknown_tool_asks_nobody() -> None:
    files = Files()
    assert (
        refusal(files.app, ERAS[1], "undelete", **files.answering("accept", {"approve": True})).code
        == -32602
    )
    assert files.asked == []


def test_the_outputs_of_a_program_that_needs_nobody_come_at_once() -> None:
    with ferrule.context(lm=ScriptedLM([fields(answer="4")])):
        app = MCPApp({"sums": ferrule.Predict("question -> answer")})
    assert text(call(app, ERAS[1], "sums", {"question": "?"})) == '{"answer":"4"}'


@pytest.mark.parametrize("era", ERAS)
def test_where_the_host_fails_to_decide_the_call_is_not_run(era: str) -> None:
    """And what it raised is told to nobody."""

    def fails(name: str, arguments: dict) -> bool:
        msg = "secret"
        raise LookupError(msg)

    files = Files(confirm=fails)
    result = call(files.app, era, "delete", {"path": "a"})
    assert result.is_error
    assert "secret" not in text(result)
    assert files.deleted == []


@pytest.mark.parametrize(
    ("rule", "deleted", "asked"),
    [
        pytest.param(ferrule.allow("delete"), ["a"], 0, id="allowed"),
        pytest.param(ferrule.ask("delete"), ["a"], 1, id="asked"),
        pytest.param(ferrule.deny("delete", reason="not today"), [], 0, id="denied"),
        pytest.param(ferrule.deny("other"), ["a"], 1, id="of another tool"),
    ],
)
def test_the_policy_in_force_where_it_is_served_has_its_say(
    rule: object,
    deleted: list,
    asked: int,
) -> None:
    """Issue, 3: as in a run."""
    with ferrule.context(policy=ferrule.Policy([rule])):
        files = Files()
    result = call(
        files.app,
        ERAS[1],
        "delete",
        {"path": "a"},
        **files.answering("accept", {"approve": True}),
    )
    assert (files.deleted, len(files.asked)) == (deleted, asked)
    assert deleted or "not today" in text(result)


@pytest.mark.parametrize(("effect", "asked"), [("read", 0), ("once", 1)])
def test_destructive_asks_unless_the_tool_only_reads(effect: str, asked: int) -> None:
    """`"destructive"`."""
    files = Files()
    files.app.add(Tool(files.delete, require_confirmation="destructive", effect=effect))
    call(
        files.app,
        ERAS[1],
        "delete",
        {"path": "a"},
        **files.answering("accept", {"approve": True}),
    )
    assert len(files.asked) == asked


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("action", "told"), [("accept", "Berlin"), ("decline", None)])
def test_a_program_that_asks_for_words_gets_them(era: str, action: str, told: str | None) -> None:
    seen = []

    async def answer(context, params):
        seen.append(list(params.requested_schema["properties"]))
        return types.ElicitResult(
            action=action,
            content={"answer": "Berlin"} if action == "accept" else None,
        )

    def model(request) -> object:
        last = request.messages[-1]
        return (
            native_step("", "finish", {"answer": last.text})
            if last.role == "tool"
            else native_step("", "user_clarification", {"question": "Where?"})
        )

    agent = ReAct("question -> answer", [], enable_user_clarification=True)
    with ferrule.context(lm=ScriptedLM(by=model)):
        app = MCPApp({"agent": agent})
    found = text(call(app, era, "agent", {"question": "weather?"}, elicitation_callback=answer))
    assert seen == [["answer"]]
    assert (told or "Berlin") in found if told else "Berlin" not in found


def waiting(deleted: list[str]) -> tuple[MCPApp, object]:
    """A program that waits for consent, and what the client was answered."""
    app = agent(deleted)

    async def act(connected):
        return await connected.session.call_tool(
            "agent",
            {"question": "?"},
            allow_input_required=True,
        )

    async def never(context, params):
        raise AssertionError

    return app, talk(app, ERAS[1], act, elicitation_callback=never)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("by", ["the tool", "a policy"])
def test_a_program_that_itself_needs_consent_is_begun_once(era: str, by: str) -> None:
    """An answer to a question inside it is not taken for a new call."""
    paid, deleted, asked = [], [], []

    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    def delete(path: str) -> str:
        deleted.append(path)
        return "deleted"

    def model(request) -> object:  # by what was done: a second run would pay again
        done = [each.text for each in request.messages if each.role == "tool"]
        steps = [("pay", {"amount": 1}), ("delete", {"path": "a"}), ("finish", {"answer": "done"})]
        return native_step("", *steps[len(done)])

    async def yes(context, params):
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"approve": True})

    policy = ferrule.Policy([ferrule.ask("agent")]) if by == "a policy" else None
    with ferrule.context(lm=ScriptedLM(by=model), policy=policy):
        program = ReAct("question -> answer", [Tool(pay), Tool(delete, require_confirmation=True)])
        app = MCPApp([program.as_tool("agent", "Works.", require_confirmation=policy is None)])
    assert (
        text(call(app, era, "agent", {"question": "?"}, elicitation_callback=yes))
        == '{"answer":"done"}'
    )
    assert (paid, deleted) == ([1], ["a"])
    assert asked == [
        'Confirm execution of agent with args: {"question":"?"}?',
        'Confirm execution of delete with args: {"path":"a"}?',
    ]


def test_consent_to_a_call_is_good_for_one() -> None:
    """Who sends the answer again is not served again; a new question is answered anew."""
    files = Files()

    async def act(connected):
        first, second = [
            await connected.session.call_tool("delete", {"path": "a"}, allow_input_required=True)
            for _ in range(2)
        ]
        states = [
            first.request_state,
            first.request_state,
            second.request_state,
            first.request_state,
        ]
        again = {"input_responses": YES, "allow_input_required": True}
        return [
            await connected.session.call_tool("delete", {"path": "a"}, request_state=state, **again)
            for state in states
        ]

    async def never(context, params):
        raise AssertionError

    said = talk(files.app, ERAS[1], act, elicitation_callback=never)
    assert [each.is_error for each in said] == [False, True, False, True]
    assert "used before" in text(said[1])
    assert files.deleted == ["a", "a"]


def test_what_was_answered_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a ticket that is too old to be remembered it is taken that it was used."""
    monkeypatch.setattr(questions, "_MOST_TICKETS", 3)
    tickets = questions.Tickets()
    never_used, *made = [tickets.new() for _ in range(6)]
    assert sorted(made) == made
    assert all(tickets.use(each) for each in reversed(made[:2]))
    assert tickets.use(never_used)
    assert all(tickets.use(each) for each in made[2:])
    assert not any(tickets.use(each) for each in [never_used, *made])
    assert len(tickets._used) == 3
    assert tickets.use(tickets.new())


def test_an_answer_that_is_sent_twice_is_taken_once() -> None:
    """What was done before the question is not done again."""
    deleted: list[str] = []
    app, asked = waiting(deleted)

    async def act(connected):
        again = {
            "input_responses": YES,
            "request_state": asked.request_state,
            "allow_input_required": True,
        }
        return [
            await connected.session.call_tool("agent", {"question": "?"}, **again) for _ in range(2)
        ]

    async def never(context, params):
        raise AssertionError

    first, second = talk(app, ERAS[1], act, elicitation_callback=never)
    assert text(first) == '{"answer":"done"}'
    assert second.is_error
    assert "answered already" in text(second)
    assert deleted == ["0"]


def test_only_so_many_programs_are_kept_waiting() -> None:
    """A client that never answers fills no memory."""
    from ferrule.mcp_bridge.server.call import CallRules, CallRunner

    calls = CallRunner(CallRules())
    for k in range(150):
        calls._keep(str(k), object())
    assert list(calls._waiting) == [str(k) for k in range(50, 150)]
