from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from ferrule.errors import ConfigurationError, MissingKeyError
from ferrule.models.hosted import LM, key_for
from ferrule.models.providers import PROVIDERS, address, choose, public

PLACES = {
    "AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com/",
    "AWS_REGION": "us-west-2",
    "GOOGLE_CLOUD_LOCATION": "europe-west1",
    "GOOGLE_CLOUD_PROJECT": "mine",
}


@pytest.fixture(autouse=True)
def _places(monkeypatch):
    for name, value in PLACES.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("azure", "https://mine.openai.azure.com/openai/v1"),
        ("bedrock", "https://bedrock-runtime.us-west-2.amazonaws.com/openai/v1"),
        (
            "vertex",
            "https://europe-west1-aiplatform.googleapis.com/v1/projects/mine/locations/europe-west1/endpoints/openapi",
        ),
        ("cohere", "https://api.cohere.ai/compatibility/v1"),
    ],
)
def test_an_address_is_completed_from_the_environment(name, url):
    assert choose(f"{name}/google/some-model", None, None)[0].base_url == url


def test_the_global_place_of_vertex_is_in_no_hosts_name(monkeypatch):
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "global")
    assert choose("vertex/google/m", None, None)[0].base_url.startswith(
        "https://aiplatform.googleapis.com/v1/projects/mine/locations/global/",
    )


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("azure", "AZURE_OPENAI_ENDPOINT"),
        ("bedrock", "AWS_REGION"),
        ("vertex", "GOOGLE_CLOUD_LOCATION"),
    ],
)
def test_an_address_that_cannot_be_completed_says_what_to_set(name, variable, monkeypatch):
    """And a whole address needs nothing."""
    for each in (*PLACES, "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(each, raising=False)
    with pytest.raises(
        ConfigurationError,
        match=rf"set the environment variable {variable} \(such as .*base_url",
    ):
        LM(f"{name}/m")
    assert LM(f"{name}/m", base_url="https://gateway.example/v1").name == f"{name}/m"


@pytest.mark.parametrize("base_url", [3, "", b"http://x"])
def test_an_address_is_a_text(base_url):
    with pytest.raises(ConfigurationError, match="is an address"):
        LM("openai/m", base_url=base_url)


def test_the_region_has_a_second_variable(monkeypatch):
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert "bedrock-runtime.eu-west-1." in choose("bedrock/m", None, None)[0].base_url


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_has_an_address_and_most_a_key(name):
    provider, model = choose(f"{name}/some/model:tag", None, None)
    assert model == "some/model:tag"
    assert address(provider.base_url).endswith("/chat/completions")
    is_own = provider.base_url.startswith("http://localhost")
    assert (provider.key_variable is None) == is_own
    assert LM(f"{name}/m").name == f"{name}/m"


def test_an_address_takes_the_models_name_beside_it():
    provider, model = choose("http://host:8000/v1", None, "org/model")
    assert (provider.name, provider.base_url, model) == (
        "host:8000",
        "http://host:8000/v1",
        "org/model",
    )


def test_a_known_provider_may_live_elsewhere():
    provider, model = choose("openai/gpt", "http://proxy/v1", None)
    assert (provider.name, provider.base_url, model) == ("openai", "http://proxy/v1", "gpt")


def test_any_model_name_goes_with_a_base_url():
    provider, model = choose("Qwen/Qwen3-8B", "http://host:1/v1", None)
    assert (provider.name, model) == ("host:1", "Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("acme/x", None, None), "no provider `acme`.*openai.*groq"),
        (("gpt-5", None, None), "no provider named"),
        (("openai/", None, None), 'Which model of openai\\? Name it: LM\\("openai/..."\\)'),
        (("openai", None, None), "Which model of openai"),
        (("", None, None), "The name of a model"),
        ((None, None, None), "The name of a model"),
        ((3, None, None), "The name of a model"),
        (("http://host/v1", None, None), "Which model"),
        (("http://host/v1", None, ""), "Which model"),
        (("http://host/v1", "http://other", "m"), "Two addresses"),
        (("openai/x", None, "y"), "Two models"),
    ],
    ids=range(11),
)
def test_what_names_no_model_is_refused_with_advice(args, words):
    with pytest.raises(ConfigurationError, match=words):
        choose(*args)


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("http://h:8000/v1", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/", "http://h:8000/v1/chat/completions"),
        ("https://h/openai?api-version=1", "https://h/openai/chat/completions?api-version=1"),
        ("https://h/v1/chat/completions", "https://h/v1/chat/completions"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1/chat/completions"),
    ],
    ids=range(5),
)
def test_the_address_of_completions_is_under_the_base_url(base_url, expected):
    assert address(base_url) == expected


@pytest.mark.parametrize("host", ["a" * 64, f"{'a' * 64}.example", "a..example", ".example"])
def test_a_host_name_that_no_request_can_use_is_refused_when_the_model_is_made(host):
    with pytest.raises(ConfigurationError, match="empty or longer than 63"):
        LM(f"http://{host}/v1", model="m")


@pytest.mark.parametrize(
    "bad",
    [
        *(
            "ftp://h",
            "http://",
            "h:8000/v1",
            "http://h:99999",
            "http://[::1",
            "http://user:pass@h/v1",
        ),
        *("http://user:pass/2@h/v1", "http://user:pass?2@h/v1", "http://user:pass#2@h/v1"),
    ],
)
def test_what_is_no_address_is_refused_without_showing_secrets(bad):
    with pytest.raises(ConfigurationError) as caught:
        address(bad)
    assert "pass" not in str(caught.value).replace("password", "")
    for made in (
        lambda: LM("m", base_url=bad),
        lambda: LM("openai/m", base_url=bad),
        lambda: LM(bad, model="m") if "://" in bad else address(bad),
    ):
        with pytest.raises(ConfigurationError) as caught:
            made()
        assert "pass" not in f"{caught.value} {caught.value.__cause__}".replace("password", "")


def test_what_may_be_secret_in_an_address_is_not_shown():
    assert public("https://user:pass@host:1/v1?key=secret") == "https://host:1/v1"
    assert "secret" not in repr(LM("https://host/v1?key=secret", model="m"))


@pytest.mark.parametrize("name", ["api_base", "timeout", "num_retries", "cache", "n", "token"])
def test_settings_of_other_libraries_are_pointed_out(name):
    """The provider would get them, and the wish be lost."""
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        LM("openai/x", **{name: 1})
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        LM("openai/x").copy(**{name: 1})


MAKERS = [
    name
    for name, each in inspect.signature(LM.__init__).parameters.items()
    if each.kind is inspect.Parameter.KEYWORD_ONLY
]


@pytest.mark.parametrize("name", [*MAKERS, "model"])
def test_a_copy_takes_settings_and_not_what_a_model_is_made_with(name):
    """Else the provider would get it in the body, a key too, and the model go on as before."""
    lm = LM("openai/x", api_key="sk-1")
    with pytest.raises(ConfigurationError, match=rf"`{name}`.*LM\(\.\.\., {name}=") as raised:
        lm.copy(**{name: "sk-2"})
    assert "sk-2" not in str(raised.value)
    assert lm.copy(temperature=1).settings == {"temperature": 1}


def test_keys_come_from_the_first_variable_that_is_set(monkeypatch):
    gemini = PROVIDERS["gemini"]
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "google")
    assert key_for(gemini, None, needed=True) == "google"
    monkeypatch.setenv("GEMINI_API_KEY", "gemini")
    assert key_for(gemini, None, needed=True) == "gemini"
    assert key_for(gemini, "mine", needed=True) == "mine"
    assert key_for(gemini, "", needed=True) is None
    monkeypatch.setenv("GEMINI_API_KEY", " ")
    monkeypatch.delenv("GOOGLE_API_KEY")
    with pytest.raises(MissingKeyError, match="GEMINI_API_KEY"):
        key_for(gemini, None, needed=True)
    assert key_for(PROVIDERS["ollama"], None, needed=True) is None


def test_a_key_is_text():
    with pytest.raises(ConfigurationError, match="`api_key` is text"):
        key_for(PROVIDERS["openai"], 3, needed=True)  # type: ignore[arg-type]


def test_the_model_may_be_named_by_keyword():
    for made in (
        LM(model="openai/gpt-5-mini", api_key="k", temperature=0),
        LM("openai/gpt-5-mini", api_key="k", temperature=0),
    ):
        assert (made.name, made.settings) == ("openai/gpt-5-mini", {"temperature": 0})
    assert (
        LM(model="own", base_url="http://localhost:1/v1").name
        == LM("http://localhost:1/v1", model="own").name
        == "localhost:1/own"
    )
    with pytest.raises(ConfigurationError, match="name of a model"):
        LM()
    with pytest.raises(ConfigurationError, match="Two models"):
        LM("openai/gpt-5", model="openai/gpt-5-mini")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"wire": "soap"}, "There is no wire 'soap'. There are: openai_chat, "),
        ({"capabilities": "native"}, "`capabilities` takes `Capabilities(...)`, found 'native'"),
        ({"headers": "X: 1"}, "`headers` takes a mapping of texts, found 'X: 1'"),
        ({"connect_timeout_s": float("inf")}, "or None to wait forever; found inf"),
    ],
    ids=str,
)
def test_an_argument_of_another_type_is_refused_with_what_it_takes(options: Any, said: str) -> None:
    """They were a `KeyError` or an `AttributeError`, and an `OverflowError` at the first call."""
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        LM("openai/gpt-5-mini", api_key="k", **options)
