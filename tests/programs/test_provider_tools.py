"""Programs whose model has tools of its provider: over HTTP, with the providers' own forms."""

from __future__ import annotations

import asyncio

import pytest
from provider_server import (
    anthropic,
    cited,
    message,
    openai,
    openai_message,
    openai_response,
    openai_search,
    searched,
)

from ferrule import (
    LM,
    Citation,
    History,
    MemoryStore,
    Policy,
    Predict,
    ProviderCall,
    ReAct,
    Run,
    WebSearch,
    allow,
    ask,
    context,
    deny,
)
from ferrule.errors import ConfigurationError, DuplicateToolError, ToolDefinitionError
from ferrule.events import ProviderCallFinished, ProviderCallStarted
from ferrule.testing import RecordLM, ReplayLM, ScriptedLM

PAGE = ("Python releases", "https://python.org/downloads")
CALL = ProviderCall(
    "web_search",
    {"query": "newest python"},
    "Python releases: https://python.org/downloads",
    id="srvtoolu_1",
)


def claude(url: str, **settings):
    return LM("anthropic/claude-sonnet-4-5", base_url=url, api_key="k", **settings)


def gpt(url: str, **settings):
    return LM("openai/gpt-5", base_url=url, api_key="k", wire="openai_responses", **settings)


def searching():
    """Claude's answer after a search."""
    return message(
        {"type": "text", "text": "I'll look that up."},
        *searched("newest python", PAGE),
        {"type": "text", "text": "It is "},
        cited("Python 3.15", *PAGE, "Python 3.15 is out"),
        server_tool_use={"web_search_requests": 1, "web_fetch_requests": 0},
    )


def searching_gpt():
    url = PAGE[1]
    citation = {
        "type": "url_citation",
        "url": url,
        "title": PAGE[0],
        "start_index": 6,
        "end_index": 17,
    }
    return openai_response(
        openai_search("newest python", url), openai_message("It is Python 3.15", citation)
    )


CITATION = Citation(PAGE[1], PAGE[0], "Python 3.15 is out", 6, 17)


def test_a_model_of_anthropic_searches_the_web_and_cites():
    with anthropic(searching()) as server:
        program = Predict(
            "question -> answer", tools=[WebSearch(max_uses=3)], lm=claude(server.url)
        )
        prediction = program(question="Which Python is newest?")
    assert server.bodies[0]["tools"] == [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    ]
    assert prediction.answer == "It is Python 3.15"
    (step,) = prediction.trajectory.steps
    assert step.provider_calls == (CALL,)
    assert prediction.citations == (CITATION,)
    assert prediction.usage.provider_calls == {"web_search": 1}


def test_a_model_of_openai_searches_the_web_and_cites():
    with openai(searching_gpt()) as server:
        tools = [WebSearch(allowed_domains=["python.org"], context_size="low")]
        program = Predict("question -> answer", tools=tools, lm=gpt(server.url))
        prediction = program(question="Which Python is newest?")
    (body,) = server.bodies
    assert body["tools"] == [
        {
            "type": "web_search",
            "filters": {"allowed_domains": ["python.org"]},
            "search_context_size": "low",
        }
    ]
    assert body["include"] == ["reasoning.encrypted_content", "web_search_call.action.sources"]
    assert prediction.answer == "It is Python 3.15"
    (step,) = prediction.trajectory.steps
    (call,) = step.provider_calls
    assert (call.name, call.result, call.id) == ("web_search", PAGE[1], "ws_1")
    assert call.args["query"] == "newest python"
    assert prediction.citations == (Citation(PAGE[1], PAGE[0], None, 6, 17),)
    assert prediction.usage.provider_calls == {"web_search": 1}


def note(text: str) -> str:
    """Note a text."""
    return f"noted {text}"


def noting(*blocks):
    call = {"type": "tool_use", "id": "toolu_1", "name": "note", "input": {"text": "3.15"}}
    return message(*blocks, call, stop="tool_use")


def finish(answer: str):
    call = {"type": "tool_use", "id": "toolu_2", "name": "finish", "input": {"answer": answer}}
    return message(call, stop="tool_use")


def agent(lm, **options):
    return ReAct("question -> answer", tools=[WebSearch(), note], lm=lm, **options)


def test_an_agent_has_tools_of_both_kinds_and_sends_the_provider_its_own_blocks_back():
    first = noting(*searched("newest python", PAGE))
    with anthropic(first, finish("3.15")) as server:
        prediction = agent(claude(server.url))(question="Which Python is newest?")
    names = [tool["name"] for tool in server.bodies[0]["tools"]]
    assert names == ["web_search", "note", "finish"]
    answer = server.bodies[1]["messages"][1]
    assert answer == {"role": "assistant", "content": first["content"]}
    first_step, last = prediction.trajectory.steps
    assert first_step.provider_calls == (CALL,)
    assert [call.name for call in first_step.calls] == ["note"]
    assert not last.provider_calls
    assert prediction.trajectory["tool_name_0"] == ["web_search", "note"]
    assert prediction.trajectory["observation_0"] == [CALL.result, "noted 3.15"]
    assert prediction.answer == "3.15"


def test_an_agent_that_answers_in_text_after_a_search_has_a_step_for_it():
    with anthropic(searching()) as server:
        prediction = agent(claude(server.url))(question="Which Python is newest?")
    (step,) = prediction.trajectory.steps
    assert step.provider_calls == (CALL,)
    assert prediction.answer == "It is Python 3.15"
    assert prediction.citations == (CITATION,)


def test_async_programs_search_as_sync_ones_do():
    async def main(url):
        return await agent(claude(url)).acall(question="Which Python is newest?")

    with anthropic(noting(*searched("newest python", PAGE)), finish("3.15")) as server:
        prediction = asyncio.run(main(server.url))
    assert prediction.trajectory.steps[0].provider_calls == (CALL,)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_search_is_told_when_it_begins_and_when_it_has_ended(streamed):
    told = []
    with anthropic(searching()) as server:
        program = Predict("question -> answer", tools=[WebSearch()], lm=claude(server.url))
        if streamed:
            told = list(program.stream(question="Which?"))
        else:
            with context(callbacks=[told.append]):
                program(question="Which?")
    begun = [event.call for event in told if isinstance(event, ProviderCallStarted)]
    ended = [event.call for event in told if isinstance(event, ProviderCallFinished)]
    assert begun == [ProviderCall("web_search", {"query": "newest python"}, id="srvtoolu_1")]
    assert ended == [CALL]


def test_text_before_a_search_is_a_preamble_of_a_streamed_answer():
    with anthropic(searching()) as server:
        program = Predict("question -> answer", tools=[WebSearch()], lm=claude(server.url))
        told = list(program.stream(question="Which?"))
    kinds = [event.type for event in told]
    preamble, ended = kinds.index("Preamble"), kinds.index("ProviderCallFinished")
    assert preamble < kinds.index("ProviderCallStarted") < ended
    assert told[preamble].text == "I'll look that up."
    fields = [event.text for event in told[ended:] if event.type == "FieldDelta"]
    assert "".join(fields) == "It is Python 3.15"


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_pauses_goes_on_with_its_own_blocks(streamed):
    search = searched("newest python", PAGE)
    first = message({"type": "text", "text": "I'll look."}, search[0], stop="pause_turn")
    second = message(
        search[1],
        cited("Python 3.15", *PAGE, "Python 3.15 is out"),
        server_tool_use={"web_search_requests": 1, "web_fetch_requests": 0},
    )
    with anthropic(first, second, message({"type": "text", "text": "Yes."})) as server:
        lm = claude(server.url)
        program = Predict("question, history: History -> answer", tools=[WebSearch()], lm=lm)
        if streamed:
            prediction = program.stream(question="Which?", history=History()).prediction
        else:
            prediction = program(question="Which?", history=History())
        again = program(question="Sure?", history=prediction.history)
    assert prediction.answer == "Python 3.15"
    assert [step.provider_calls for step in prediction.trajectory.steps] == [(CALL,)]
    assert prediction.citations == (Citation(PAGE[1], PAGE[0], "Python 3.15 is out", 0, 11),)
    assert prediction.usage.provider_calls == {"web_search": 1}
    assert prediction.usage.calls == 2
    paused, *_ = server.bodies[1]["messages"][1:]
    assert paused["content"] == first["content"]
    # The whole turn goes back as one answer.
    answer = server.bodies[2]["messages"][1]
    assert answer["content"] == [*first["content"], *second["content"]]
    assert again.answer == "Yes."


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_a_stored_run_keeps_what_the_provider_found(kind):
    """A run that waits, is loaded elsewhere, and continues without searching again."""
    if kind == "anthropic":
        served = anthropic(noting(*searched("newest python", PAGE)), finish("3.15"))
    else:
        noted = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "note",
            "arguments": '{"text": "3.15"}',
            "status": "completed",
        }
        ended = {**noted, "id": "fc_2", "call_id": "call_2", "name": "finish"}
        served = openai(
            openai_response(openai_search("newest python", PAGE[1]), noted),
            openai_response({**ended, "arguments": '{"answer": "3.15"}'}),
        )
    store = MemoryStore()
    with served as server:
        lm = (claude if kind == "anthropic" else gpt)(server.url)
        program = agent(lm, policy=Policy([ask("note")]))
        run = program.start(question="Which?", store=store)
        assert run.status == "waiting"
        loaded = Run.load(store, run.id, agent(lm, policy=Policy([ask("note")])))
        loaded.answer(loaded.pending[0].approve())
        prediction = loaded.resume().prediction
        assert len(server.bodies) == 2
    first, _ = prediction.trajectory.steps
    assert [call.name for call in first.provider_calls] == ["web_search"]
    assert first.provider_calls[0].result.endswith(PAGE[1])
    assert prediction.usage.provider_calls == {"web_search": 1}
    # And read once more, from the journal alone.
    finished = Run.load(store, run.id, agent(ScriptedLM([])))
    assert finished.prediction.trajectory.steps == prediction.trajectory.steps
    assert finished.prediction.usage.provider_calls == {"web_search": 1}


# -- where it cannot run


def test_a_model_without_the_tool_is_not_asked_and_the_error_names_models_that_have_it():
    with openai() as server:
        lm = LM("openai/gpt-5", base_url=server.url, api_key="k")
        program = Predict("question -> answer", tools=[WebSearch()], lm=lm)
        with pytest.raises(
            ConfigurationError, match=r'LM\("openai/...", wire="openai_responses"\)'
        ):
            program(question="Which?")
        assert server.bodies == []


def test_an_option_that_the_wire_cannot_send_is_refused_before_the_request():
    with openai() as server:
        program = Predict("question -> answer", tools=[WebSearch(max_uses=1)], lm=gpt(server.url))
        with pytest.raises(ConfigurationError, match="max_uses"):
            program(question="Which?")
        assert server.bodies == []


# -- policies


def test_a_tool_that_a_policy_denies_is_not_declared():
    with anthropic(message({"type": "text", "text": "Python 3.15"})) as server:
        policy = Policy([deny("web_*")])
        prediction = agent(claude(server.url), policy=policy)(question="Which?")
    assert [tool["name"] for tool in server.bodies[0]["tools"]] == ["note", "finish"]
    assert prediction.answer == "Python 3.15"


@pytest.mark.parametrize(
    ("policy", "is_declared"),
    [
        (Policy([allow("web_search")], otherwise="deny"), True),
        (Policy([allow("note")], otherwise="deny"), False),
        (Policy([deny("web_search", query="*secret*")]), False),
        (Policy([allow("web_search", query="*python*")], otherwise="deny"), False),
        (Policy([allow("*")], around=Policy([deny("web_search")])), False),
    ],
)
def test_a_policy_of_the_settings_decides_whether_the_tool_is_declared(policy, is_declared):
    lm = ScriptedLM(["[[ ## answer ## ]]\ndone"])
    with context(policy=policy, lm=lm):
        Predict("question -> answer", tools=[WebSearch()])(question="Which?")
    assert bool(lm.requests[0].provider_tools) is is_declared


@pytest.mark.parametrize("rule", [ask("web_search"), ask("*"), ask("web_*", query="*secret*")])
def test_to_ask_about_a_providers_tool_is_refused_when_the_agent_is_made(rule):
    with pytest.raises(ConfigurationError, match="no person can be asked first"):
        agent(ScriptedLM([]), policy=Policy([rule]))


def test_to_ask_by_the_policy_of_the_settings_is_refused_before_the_request():
    lm = ScriptedLM(["done"])
    with context(policy=Policy([ask("*")]), lm=lm):
        program = Predict("question -> answer", tools=[WebSearch()])
        with pytest.raises(ConfigurationError, match="no person can be asked first"):
            program(question="Which?")
    assert lm.requests == []


def test_a_declaration_takes_no_confirmation():
    with pytest.raises(ToolDefinitionError, match="no person can be asked first"):
        WebSearch(require_confirmation=True)


# -- lists of tools


def test_two_tools_of_one_name_are_refused():
    def web_search(query: str) -> str:
        """Search."""
        return query

    with pytest.raises(DuplicateToolError, match="web_search"):
        ReAct("question -> answer", tools=[WebSearch(), web_search])
    with pytest.raises(DuplicateToolError, match="web_search"):
        ReAct("question -> answer", tools=[WebSearch(), WebSearch(max_uses=2)])


def test_a_saved_program_needs_its_providers_tools_to_be_loaded(tmp_path):
    path = tmp_path / "program.json"
    agent(None).save(path)
    again = agent(None)
    again.load(path)
    assert again.toolbox.names[0] == "note"
    assert again.react.toolbox.provider_tools == (WebSearch(),)
    with pytest.raises(ToolDefinitionError, match="web_search"):
        ReAct("question -> answer", tools=[note]).load(path)


def test_a_recorded_answer_keeps_what_the_provider_found(tmp_path):
    path = tmp_path / "answers.jsonl"
    program = Predict("question -> answer", tools=[WebSearch()])
    with anthropic(searching()) as server:
        first = program(question="Which?", lm=RecordLM(claude(server.url), path))
    again = program(question="Which?", lm=ReplayLM(path))
    assert again.trajectory.steps == first.trajectory.steps
    assert again.citations == (CITATION,)
    assert again.usage.provider_calls == {"web_search": 1}
