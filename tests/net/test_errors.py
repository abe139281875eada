from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule.errors import (
    AuthenticationError,
    BadRequestError,
    ContextOverflowError,
    LMError,
    RateLimitError,
    RefusalError,
    UnavailableError,
)
from ferrule.net.errors import payload_error, request_id, retry_after_s, status_error, with_provider

OVERFLOWS = [
    "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "the request exceeds the available context size, try increasing it",
    "Please reduce the length of the messages or completion.",
    "input length and `max_tokens` exceed context limit: context window full",
    "Trying to keep the first 5000 tokens when context the overflows.",
    "Unable to submit request because the input token count is 1251952 but model only supports up to 1048576.",  # Vertex
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 204800]",  # Qwen's provider
    "Invalid request: Your request exceeded model token limit: 262144 (requested: 287431)",  # Moonshot
    "Prompt exceeds max length",  # Zhipu
    "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input.",  # Bedrock
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000 `inputs` tokens",  # Hugging Face, Together
    "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",  # vLLM
    "Total tokens of image and text exceed max message tokens.",  # Doubao
    "litellm.ContextWindowExceededError: ContextWindowExceededError: OpenAIException - x",
]


@pytest.mark.parametrize("message", OVERFLOWS, ids=range(len(OVERFLOWS)))
def test_a_prompt_that_is_too_long_is_known_by_its_words(message):
    error, again = status_error(400, {}, f'{{"error": {{"message": "{message}"}}}}'.encode())
    assert type(error) is ContextOverflowError
    assert not again


@pytest.mark.parametrize(
    "message",
    [
        "Request too large for model `x` on tokens per minute (TPM)",
        "Too many tokens per minute",
        "temperature exceeds the maximum of 2",
        "max_tokens is too large: 200000. This model supports at most 16384 completion tokens",
        "tools.0.name exceeds maximum length of 64",
    ],
    ids=range(5),
)
def test_not_everything_that_is_too_much_is_a_prompt_that_is_too_long(message):
    assert (
        type(status_error(413, {}, f'{{"error": {{"message": "{message}"}}}}'.encode())[0])
        is BadRequestError
    )


SHAPES = {
    "openai": (b'{"error": {"message": "said", "type": "t", "param": null, "code": null}}', "said"),
    "ollama": (b'{"error": "said"}', "said"),
    "mistral": (b'{"object": "error", "message": "said", "type": "x"}', "said"),
    "fastapi": (b'{"detail": "said"}', "said"),
    "fastapi_list": (b'{"detail": [{"loc": ["body"], "msg": "said"}]}', "said"),
    "gemini": (
        b'[{"error": {"code": 400, "message": "said", "status": "INVALID_ARGUMENT"}}]',
        "said",
    ),
    "text": (b"said", "said"),
    "html": (b"<html><head><title>\n said </title>", "said"),
    "latin": (b"\xff said", "said"),
    "odd": (b"3", "3"),
    "nested": (b'{"error": {"message": {"said": 1}}}', "said"),
}


@pytest.mark.parametrize(("body", "words"), SHAPES.values(), ids=SHAPES.keys())
def test_the_providers_message_is_found_in_any_shape(body, words):
    error, _ = status_error(400, {"x-request-id": "req"}, body, provider="p")
    assert words in str(error)
    assert (error.provider, error.status, error.request_id) == ("p", 400, "req")


def test_a_long_message_is_cut():
    assert len(str(status_error(400, {}, b"x" * 100_000)[0])) < 1200


@example(408, b"", {})
@example(409, b"", {})
@given(
    st.integers(300, 599),
    st.binary(max_size=60),
    st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.text(max_size=8)),
)
def test_any_answer_gives_an_error(status, body, headers):
    error, again = status_error(status, headers, body, secret="secret")
    assert isinstance(error, LMError)
    assert again == (status in {408, 409, 429} or status >= 500)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 +99999999999999"}, None),
        ({"llm_provider-retry-after": "7"}, 7),
        ({"llm_provider-retry-after": "7", "retry-after": "2"}, 2),
        ({}, None),
    ],
    ids=range(13),
)
def test_how_long_to_wait_is_read_from_the_headers(headers, seconds):
    assert retry_after_s(headers) == seconds


def test_a_date_to_wait_for_is_turned_into_seconds():
    at = datetime.now(UTC) + timedelta(seconds=1000)
    assert 900 < (retry_after_s({"retry-after": format_datetime(at, usegmt=True)}) or 0) <= 1000


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (301, b"", "Is the base URL right?"),
        (308, b"<title>Moved</title>", "Is the base URL right?"),
        (400, b"", "Is the base URL right?"),
        (401, b"", "Check the key"),
        (403, b'{"error": "no"}', "Check the key"),
        (429, b"", "`requests_per_minute=`"),
    ],
)
def test_a_status_without_words_says_what_to_do(status, body, words):
    assert words in str(status_error(status, {}, body)[0])


def test_a_spent_quota_is_not_told_to_wait():
    """Waiting does not help."""
    error, _ = status_error(429, {}, b'{"error": {"code": "insufficient_quota", "message": "pay"}}')
    assert str(error) == "pay (status 429)"


def test_the_request_id_has_several_names():
    assert request_id({"request-id": "a"}) == "a"
    assert request_id({"cf-ray": "b", "x-request-id": ""}) == "b"
    assert request_id({}) is None


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({"error": {"code": 429, "message": "x"}}, RateLimitError),
        ({"error": {"code": "429", "message": "x"}}, RateLimitError),
        ({"error": {"type": "rate_limit_error", "message": "x"}}, RateLimitError),
        ({"error": {"type": "authentication_error", "message": "x"}}, AuthenticationError),
        ({"error": {"type": "invalid_request_error", "message": "x"}}, BadRequestError),
        (
            {"error": {"type": "invalid_request_error", "message": "prompt is too long"}},
            ContextOverflowError,
        ),
        ({"error": {"code": "content_filter", "message": "x"}}, RefusalError),
        ({"error": {"message": "x"}}, UnavailableError),
    ],
    ids=range(8),
)
def test_an_error_in_an_answer_with_success_is_known_by_its_code(payload, kind):
    assert type(payload_error(payload)) is kind


def test_an_error_learns_whose_it_is_once():
    cause = ValueError()
    error = RateLimitError("slow sk-1", status=429, retry_after_s=3)
    error.__cause__ = cause
    named = with_provider(error, provider="p", response_request_id="r", secret="sk-1")
    assert type(named) is RateLimitError
    assert (str(named), named.provider, named.status, named.retry_after_s, named.request_id) == (
        "p: slow [key] (status 429)",
        "p",
        429,
        3,
        "r",
    )
    assert named.__cause__ is cause
    assert with_provider(named, provider="q") is named


@pytest.mark.parametrize("key", ["x", "length", "none", "tokens"])
def test_a_key_that_is_a_word_hides_no_kind_of_error(key):
    """People give such a key to a server of their own, and the server says the word: the agent
    could not shorten its history then.
    """
    said = "This model's maximum context length is 8192 tokens, and none is left."
    error, _ = status_error(400, {}, json.dumps({"error": {"message": said}}).encode(), secret=key)
    assert type(error) is ContextOverflowError
    assert (key in str(error).partition(". ")[0]) == (len(key) == 1)


def test_googles_reasons_and_waits_stand_in_the_details():
    """A wrong key of Gemini is a 400, and the wait of its 429 stands in the body
    (google.rpc.ErrorInfo, RetryInfo).
    """
    key = b'{"error": {"code": 400, "message": "API key not valid.", "details": [7, {"reason": "API_KEY_INVALID"}]}}'
    assert isinstance(status_error(400, {}, key)[0], AuthenticationError)
    wait = b'{"error": {"code": 429, "message": "Quota.", "details": [{"@type": "x", "retryDelay": "34.5s"}]}}'
    error, again = status_error(429, {}, wait)
    assert (type(error), error.retry_after_s, again) == (RateLimitError, 34.5, True)
    assert status_error(429, {"retry-after": "1"}, wait)[0].retry_after_s == 1


PERMANENT = {
    "llama.cpp_image": "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
    "llama.cpp_template": "While executing CallExpression at line 1: Error: Jinja Exception: Conversation roles must alternate user/assistant",
    "llama.cpp_tools": "tools param requires --jinja flag",
    "llama.cpp_embeddings": "This server does not support embeddings. Start it with `--embeddings`",
    "llama.cpp_form": "The model produced output that does not match the expected peg-native format",
}


@pytest.mark.parametrize("message", PERMANENT.values(), ids=PERMANENT)
def test_a_5xx_that_waiting_cannot_mend_is_not_asked_again(message):
    """Llama.cpp's server answers 500 to what it cannot do."""
    error, again = status_error(
        500,
        {},
        json.dumps({"error": {"code": 500, "message": message, "type": "server_error"}}).encode(),
    )
    assert (type(error), error.status, again) == (BadRequestError, 500, False)
    assert (
        type(payload_error({"error": {"code": 500, "message": message, "type": "server_error"}}))
        is BadRequestError
    )


@pytest.mark.parametrize(
    "message",
    ["upstream connect error", "Service temporarily unavailable", "overloaded", ""],
)
def test_any_other_5xx_may_pass(message):
    error, again = status_error(503, {}, json.dumps({"error": {"message": message}}).encode())
    assert (type(error), again) == (UnavailableError, True)


@pytest.mark.parametrize(
    "error",
    [
        {
            "message": "Content Exists Risk",
            "type": "invalid_request_error",
            "code": "invalid_request_error",
        },
        {
            "message": "Input data may contain inappropriate content.",
            "code": "data_inspection_failed",
        },
        {"message": "x", "code": "DataInspectionFailed"},
    ],
    ids=["deepseek", "qwen", "qwen_code"],
)
def test_a_refusal_is_known_by_its_words_or_code(error):
    """The same request is refused again, so changing it may help, and the settings are right."""
    assert type(status_error(400, {}, json.dumps({"error": error}).encode())[0]) is RefusalError


QUOTAS = {
    "openai": {
        "message": "You exceeded your current quota, please check your plan.",
        "code": "insufficient_quota",
    },
    "litellm": {
        "message": "litellm.RateLimitError: RateLimitError: OpenAIException - You exceeded your current quota, please check your plan",
        "type": "insufficient_quota",
        "code": "429",
    },
    "litellm_throttled": {
        "message": "litellm.RateLimitError: RateLimitError: OpenAIException - You exceeded your current quota, please check your plan",
        "type": "throttling_error",
        "code": "429",
    },
    "litellm_budget": {
        "message": "Budget has been exceeded! Current cost: 2, Max budget: 1",
        "type": "budget_exceeded",
        "code": "429",
    },
}


@pytest.mark.parametrize("body", QUOTAS.values(), ids=QUOTAS)
def test_a_spent_quota_does_not_come_back_by_waiting(body):
    """At OpenAI itself, and behind LiteLLM's proxy, which keeps the words."""
    error, again = status_error(429, {}, json.dumps({"error": body}).encode())
    assert (type(error), again, error.is_retryable) == (RateLimitError, False, False)


def test_a_quota_of_the_minute_comes_back():
    """Gemini words its limits by the minute as a quota, and says how long to wait."""
    said = {
        "code": 429,
        "message": "You exceeded your current quota.",
        "details": [{"@type": "x", "retryDelay": "3s"}],
    }
    error, again = status_error(429, {}, json.dumps({"error": said}).encode())
    assert (error.retry_after_s, again, error.is_retryable) == (3, True, True)


@pytest.mark.parametrize(
    ("body", "is_told"),
    [('{"detail": "Not Found"}', True), ("", True), ('{"error": "model \'m\' not found"}', False)],
)
def test_an_address_without_the_path_of_the_api_is_told_from_a_missing_model(
    body: str,
    *,
    is_told: bool,
):
    """The error of most first attempts, with a base URL that lacks `/v1`."""
    error, _ = status_error(404, {}, body.encode())
    assert str(error).endswith("Is the base URL right? Most end in `/v1`.") is is_told
