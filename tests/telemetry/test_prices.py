"""What answers cost: of real servers on loopback that report it, or by prices."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from agent_script import fields
from msgspec.structs import replace
from raw_server import raw_server, reply

from ferrule import LM, FallbackLM, Predict, Prices, Response, Run, Usage, configure, context
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM, serve

pytest.importorskip("genai_prices", reason="needs the extra: pip install 'ferrule[prices]'")

THOUSAND = Usage(1000, 500, 200, 1)


def answering(usage: Usage = THOUSAND, **more: Any) -> ScriptedLM:
    return ScriptedLM(by=lambda _: Response(fields(answer="42"), usage=usage, **more))


def cost_of(usage: Usage, name: str, *, prices: Prices | None = None, **more: Any) -> float | None:
    return (prices or Prices()).cost_of(Response("hi", usage=usage, **more), name)


def asked(lm: Any, prices: Prices | None = None, **context_of: Any) -> Run[Any]:
    with context(prices=prices, **context_of):
        return Predict("question -> answer", lm=lm).start(question="?")


# -- where it comes from


def test_the_cost_that_the_provider_reports_comes_first() -> None:
    with serve(answering(cost=0.25)) as server:
        assert asked(LM("openai/gpt-5-mini", base_url=server.base_url), Prices()).cost == 0.25


@pytest.mark.parametrize(
    ("reported", "cost"),
    [
        ({"cost": 0.5}, 0.5),
        ({"cost": {"total_cost": 0.006}}, 0.006),
        ({"cost_in_usd_ticks": 318319000}, 0.0318319),
        ({"cost": "much"}, None),
    ],
    ids=["OpenRouter", "Perplexity", "xAI", "nonsense"],
)
def test_providers_report_it_in_their_own_ways(
    reported: dict[str, Any],
    cost: float | None,
) -> None:
    body = {
        "choices": [{"message": {"content": fields(answer="42")}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, **reported},
    }
    with raw_server(reply(json.dumps(body))) as server:
        assert asked(LM(server.base_url, model="m")).cost == cost


def test_thoughts_that_a_provider_counts_beside_the_answer_are_output() -> None:
    """xAI's chat completions; for all others the total says that they are part of it."""
    details = {"completion_tokens_details": {"reasoning_tokens": 90}}
    for total, written in ((105, 100), (15, 10)):
        usage = {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": total, **details}
        body = {"choices": [{"message": {"content": fields(answer="42")}}], "usage": usage}
        with raw_server(reply(json.dumps(body))) as server:
            found = asked(LM(server.base_url, model="m")).usage
        assert (found.output_tokens, found.reasoning_tokens) == (written, 90)


def test_without_prices_a_cost_that_is_not_reported_is_unknown() -> None:
    with serve(answering()) as server:
        run = asked(LM("openai/gpt-5-mini", base_url=server.base_url))
    assert (run.cost, run.prediction.cost, run.usage.cost) == (None, None, None)
    assert run.usage.input_tokens == 1000


@pytest.mark.parametrize("how", ["sync", "async", "stream"])
def test_the_tables_price_an_answer_of_a_known_provider(how: str) -> None:
    import asyncio

    from ferrule import EventStream

    with serve(answering()) as server, context(prices=Prices()):
        program = Predict(
            "question -> answer",
            lm=LM("openai/gpt-5-mini", base_url=server.base_url),
        )
        if how == "stream":
            stream: EventStream = program.stream(question="?")
            list(stream)
            prediction = stream.prediction
        else:
            prediction = (
                asyncio.run(program.acall(question="?"))
                if how == "async"
                else program(question="?")
            )
    assert prediction.cost == pytest.approx((800 * 0.25 + 200 * 0.025 + 500 * 2) / 1e6)
    assert prediction.usage.by_model["gpt-5-mini"].cost == prediction.cost


def test_cached_written_and_thought_tokens_have_their_own_prices() -> None:
    claude = "anthropic/claude-haiku-4-5"
    plain, read = (
        cost_of(Usage(10_000, 0, 0, 1), claude),
        cost_of(Usage(10_000, 0, 10_000, 1), claude),
    )
    wrote = cost_of(Usage(10_000, 0, 0, 1, 0, 10_000), claude)
    assert plain is not None
    assert (read, wrote) == (pytest.approx(plain / 10), pytest.approx(plain * 1.25))
    thought = cost_of(Usage(0, 1000, 0, 1, 400), "openai/gpt-5-mini")
    assert thought == cost_of(Usage(0, 1000, 0, 1), "openai/gpt-5-mini") == pytest.approx(0.002)
    assert (
        cost_of(Usage(10, 5, 99, 1, 99, 99), claude) is not None
    )  # counts that contradict one another


def test_the_model_that_answered_has_the_price_not_the_alias_that_was_asked() -> None:
    assert cost_of(THOUSAND, "azure/our-deployment", model="gpt-4o-2024-08-06") == cost_of(
        THOUSAND,
        "azure/gpt-4o",
    )
    assert cost_of(THOUSAND, "azure/our-deployment") is None


def test_a_slower_or_faster_service_has_its_price() -> None:
    usual = cost_of(THOUSAND, "openai/o3", body={"service_tier": "default"})
    assert usual is not None
    assert cost_of(THOUSAND, "openai/o3", body={"service_tier": "flex"}) == pytest.approx(usual / 2)


def test_the_names_of_ferrules_providers_are_known_to_the_tables() -> None:
    names = [
        "gemini/gemini-2.5-flash",
        "vertex/gemini-2.5-flash",
        "xai/grok-4",
        "groq/llama-3.3-70b-versatile",
        "litellm/openai/gpt-4o",
    ]
    names += [
        "mistral/mistral-small-latest",
        "deepseek/deepseek-chat",
        "openrouter/openai/gpt-4o",
        "bedrock/openai.gpt-oss-120b-1:0",
    ]
    assert [name for name in names if not cost_of(THOUSAND, name)] == []


# -- prices of your own


@pytest.mark.parametrize("name", ["openai/gpt-5-mini", "gpt-5-mini", "gpt-5-mini-2025"])
def test_own_prices_come_before_the_tables_by_any_name_of_the_model(name: str) -> None:
    prices = Prices(extra={name: (0.5, 2.0)})
    assert (
        cost_of(THOUSAND, "openai/gpt-5-mini", prices=prices, model="gpt-5-mini-2025")
        == (1000 * 0.5 + 500 * 2.0) / 1e6
    )


def test_a_model_of_your_own_server_has_the_price_that_you_give_and_0_is_a_price() -> None:
    with serve(answering()) as server:
        lm = LM(server.base_url, model="my-model")
        assert asked(lm, Prices(extra={"my-model": (0.5, 2.0)})).cost == 0.0015
        assert asked(lm, Prices(extra={"my-model": (0, 0)})).cost == 0.0


@pytest.mark.parametrize(
    "wrong",
    [{"m": 0.5}, {"m": (1.0,)}, {"m": (1.0, -2.0)}, {"m": ("1", "2")}, {"m": (True, 1)}, ["m"]],
)
def test_prices_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="extra"):
        Prices(extra=wrong)


def test_a_misspelled_option_is_refused_with_the_nearest_one() -> None:
    """It was a bare TypeError."""
    wrong: dict[str, Any] = {"extr": {}}
    with pytest.raises(
        ConfigurationError,
        match=r"`Prices` has no option `extr`. Did you mean `extra`\?",
    ):
        Prices(**wrong)


def test_the_setting_takes_prices_only() -> None:
    for wrong in (Prices, {"m": (1, 2)}):
        with pytest.raises(ConfigurationError, match="prices"), context(prices=wrong):
            pass


# -- unknown


@pytest.mark.parametrize(
    ("name", "usage", "why"),
    [
        ("openai/gpt-99-nano", THOUSAND, "no price for it"),
        ("localhost:8000/gpt-5-mini", THOUSAND, "not a model of a known provider"),
        ("ollama/qwen3", THOUSAND, "no price for it"),
        ("mine", THOUSAND, "not a model of a known provider"),
        ("openai/gpt-5-mini", Usage(calls=1), "without counts of tokens"),
        ("openai/gpt-5-mini", Usage(0, 0, 5, 1), "without counts of tokens"),
    ],
)
def test_an_unknown_model_has_no_cost_and_is_logged_once(
    name: str,
    usage: Usage,
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    prices = Prices()
    assert [cost_of(usage, name, prices=prices) for _ in range(3)] == [None, None, None]
    [record] = caplog.records
    assert (record.name, record.levelno, record.model) == ("ferrule.models", logging.WARNING, name)  # pyright: ignore[reportAttributeAccessIssue]
    assert why in record.getMessage()


def test_own_prices_of_an_answer_without_counts_are_no_cost() -> None:
    assert cost_of(Usage(calls=1), "mine", prices=Prices(extra={"mine": (1, 2)})) is None


def test_the_cost_of_a_run_is_unknown_if_that_of_one_answer_is_and_that_of_each_model_is_told() -> (
    None
):
    known, unknown = (
        Response(fields(answer="a"), usage=THOUSAND, model="m"),
        Response(fields(answer="b"), usage=THOUSAND, model="n"),
    )
    from ferrule import Module

    class Both(Module):
        def __init__(self) -> None:
            self.ask = Predict("question -> answer")

        def forward(self) -> Any:
            return [self.ask(question="1").answer, self.ask(question="2").answer]

    with context(prices=Prices(extra={"m": (1, 0)}), lm=ScriptedLM([known, unknown])):
        run = Both().start()
    assert (run.prediction, run.cost) == (["a", "b"], None)
    assert {name: each.cost for name, each in run.usage.by_model.items()} == {"m": 0.001, "n": None}


# -- once


def test_a_cost_is_computed_once_and_kept_with_the_answer() -> None:
    with serve(answering()) as server:
        lm = LM(server.base_url, model="m")
        run = asked(lm, Prices(extra={"m": (1.0, 1.0)}))
    program = Predict("question -> answer", lm=lm)
    with context(prices=Prices(extra={"m": (9.0, 9.0)})):
        again = Run.from_json(run.to_json(), program)
        assert (again.prediction.cost, again.cost, again.usage) == (0.0015, 0.0015, run.usage)
    unpriced = asked(answering())
    assert '"cost"' not in json.dumps([json.loads(unpriced.to_json())["journal"]])


def test_observers_see_the_cost_with_the_answer() -> None:
    seen: list[float | None] = []

    def watch(event: Any) -> None:
        if event.type == "ModelAnswered":
            seen.append(event.response.cost)

    asked(answering(model="m"), Prices(extra={"m": (1.0, 1.0)}), callbacks=[watch])
    assert seen == [0.0015]


def test_the_model_of_a_fallback_that_answered_has_the_price() -> None:
    from ferrule.errors import UnavailableError

    class Failing(ScriptedLM):
        name = "openai/gpt-5-mini"

        def complete(self, request: Any) -> Response:
            raise UnavailableError("down")

    with serve(answering()) as server:
        second = LM("openai/o3", base_url=server.base_url)
        found = asked(FallbackLM([Failing(), second]), Prices())
    assert found.cost == cost_of(THOUSAND, "openai/o3")


# -- loading and updates


def in_new_process(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout.strip()


def test_importing_ferrule_and_making_prices_loads_no_tables() -> None:
    code = """if True:
        import sys, ferrule
        from ferrule import Prices, configure, Predict
        from ferrule.testing import ScriptedLM
        seen = [bool({"genai_prices", "logging.handlers"} & {*sys.modules})]
        configure(prices=Prices(), lm=ScriptedLM(["[[ ## b ## ]]\\nB"]))
        Predict("a -> b")(a="?")
        print([*seen, "genai_prices" in sys.modules])
    """
    assert in_new_process(code) == "[False, False]"


@pytest.mark.parametrize("call", ["program(a='?')", "asyncio.run(program.acall(a='?'))"])
def test_the_first_price_loads_the_tables_in_another_thread(call: str) -> None:
    code = f"""if True:
        import asyncio, sys, threading
        from ferrule import Prices, configure, Predict, Response, Usage
        from ferrule.testing import ScriptedLM
        class Spy:
            def find_spec(self, name, path=None, target=None):
                if name == "genai_prices":
                    threads.append(threading.current_thread() is threading.main_thread())
        class Known(ScriptedLM):
            name = "openai/gpt-5-mini"
        threads = []
        configure(prices=Prices(), lm=Known(by=lambda _: Response("[[ ## b ## ]]\\nB", usage=Usage(1000, 0, 0, 1))))
        sys.meta_path.insert(0, Spy())
        program = Predict("a -> b")
        print({call}.cost, threads)
    """
    assert in_new_process(code) == "0.00025 [False]"


@contextmanager
def price_server(body: bytes) -> Iterator[tuple[str, list[str]]]:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/prices.json", paths
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


NEW = [
    {
        "id": "openai", "name": "OpenAI", "api_pattern": "https://api\\.openai\\.com",
        "models": [{"id": "gpt-99", "match": {"equals": "gpt-99"}, "prices": {"input_mtok": 7, "output_mtok": 9}}],
    },
]  # fmt: skip


def test_newer_prices_are_downloaded_only_if_asked_for() -> None:
    code = """if True:
        import sys, genai_prices
        from ferrule import Prices, Response, Usage
        prices, answer = Prices(update={update!r}), Response("", usage=Usage(1_000_000, 0, 0, 1))
        prices.cost_of(answer, "openai/gpt-5-mini")
        genai_prices.wait_prices_updated_sync(30)
        print(prices.cost_of(answer, "openai/gpt-99"))
    """
    with price_server(json.dumps(NEW).encode()) as (url, paths):
        assert in_new_process(code.replace("{update!r}", repr(url))) == "7.0"
        assert paths == ["/prices.json"]
        assert in_new_process(code.replace("{update!r}", "False")) == "None"
        assert len(paths) == 1


def test_without_genai_prices_own_prices_work_and_anything_else_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find: Callable[..., Any] = __import__("importlib.util").util.find_spec
    monkeypatch.setattr(
        "ferrule.telemetry.prices.find_spec",
        lambda name: None if name == "genai_prices" else find(name),
    )
    assert cost_of(THOUSAND, "mine", prices=Prices(extra={"mine": (1, 0)})) == 0.001
    assert cost_of(THOUSAND, "openai/gpt-5-mini", prices=Prices(extra={"mine": (1, 0)})) is None
    for options in ({}, {"update": True, "extra": {"mine": (1, 0)}}):
        with pytest.raises(ConfigurationError, match=r"pip install 'ferrule\[prices\]'"):
            Prices(**options)


def test_prices_show_what_they_were_made_with() -> None:
    assert repr(Prices()) == "Prices()"
    assert repr(Prices(extra={"m": (1, 2)})) == "Prices(extra={'m': (1, 2)})"


def test_usage_adds_up_tokens_costs_and_models() -> None:
    one = Usage(10, 5, 4, 1, 3, 2, 0.5, {"a": Usage(10, 5, 4, 1, 3, 2, 0.5)})
    other = Usage(1, 1, 0, 1, cost=0.25, by_model={"a": Usage(1, 1, 0, 1, cost=0.25)})
    assert one + other == Usage(11, 6, 4, 2, 3, 2, 0.75)
    assert (one + other).by_model == {"a": Usage(11, 6, 4, 2, 3, 2, 0.75)}
    assert sum([one, Usage()], Usage()) == one
    assert (one + replace(other, cost=None)).cost is None


def test_configure_sets_prices_for_the_process() -> None:
    configure(prices=Prices(extra={"scripted": (1, 0)}))
    try:
        assert Predict("question -> answer", lm=answering())(question="?").cost == 0.001
    finally:
        configure(prices=None)
