"""Models in this process through `llama-cpp-python`, which the user installs."""

from __future__ import annotations

import ctypes
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

from ferrule.errors import BadRequestError, ConfigurationError, importing
from ferrule.models.local.backends.backend import PLAIN_TEMPLATE
from ferrule.models.local.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ferrule.models.local.backends.backend import Sampling
    from ferrule.models.local.matcher import Matcher

_DEFAULTS = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repetition_penalty": 1.0,
}
"""The defaults of llama.cpp."""
_LONGEST_PIECE_BYTES = 256
"""Twice the longest tokens of common vocabularies, which are rows of 128 spaces."""


class LlamaBackend:
    """A model in a GGUF file. Threads take turns with its context, token by token."""

    def __init__(self, path: str, *, context_tokens: int = 0, gpu_layers: int = -1) -> None:
        with importing(
            "A GGUF model in this process needs llama-cpp-python: pip install llama-cpp-python."
        ):
            library: Any = import_module("llama_cpp")
        self._library = library
        try:
            self.model: Any = library.Llama(
                path, n_ctx=context_tokens, n_gpu_layers=gpu_layers, verbose=False
            )
        except ValueError as error:
            raise ConfigurationError(f"The model {path!r} could not be loaded: {error}") from error
        self._vocab: Any = library.llama_model_get_vocab(self.model.model)
        self._lock = Lock()
        self._vocabulary: Vocabulary | None = None
        self._tokens: list[int] = []
        """The tokens whose state is in the context."""
        self.window: int | None = self.model.n_ctx()
        template: str = self.model.metadata.get("tokenizer.chat_template") or ""
        self.reads_tools = "tools" in template
        self._bos = self._piece(self.model.token_bos()).decode(errors="replace")
        self._format: Any = import_module("llama_cpp.llama_chat_format").Jinja2ChatFormatter(
            template=template or PLAIN_TEMPLATE,
            eos_token=self._piece(self.model.token_eos()).decode(errors="replace"),
            bos_token=self._bos,
        )

    def prompt(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """See `Backend`."""
        jinja2: Any = import_module("jinja2")
        try:
            text: str = self._format(messages=messages, tools=tools, **variables).prompt
        except (ValueError, jinja2.TemplateError) as error:
            # llama-cpp-python's `raise_exception` for templates raises `ValueError`.
            raise BadRequestError(f"the chat template refuses the conversation: {error}") from error
        has_bos = bool(self._bos) and text.startswith(self._bos)
        return self.model.tokenize(text.encode(), add_bos=not has_bos, special=True)

    @property
    def vocabulary(self) -> Vocabulary:
        """See `Backend`."""
        if self._vocabulary is None:
            self._vocabulary = self._read_vocabulary()
        return self._vocabulary

    def _read_vocabulary(self) -> Vocabulary:
        library, vocab, size = self._library, self._vocab, self.model.n_vocab()
        ends = [token for token in range(size) if library.llama_vocab_is_eog(vocab, token)]
        special = [token for token in range(size) if library.llama_vocab_is_control(vocab, token)]
        return Vocabulary([self._piece(token) for token in range(size)], eos=ends, special=special)

    def text(self, tokens: Sequence[int]) -> str:
        """See `Backend`."""
        return b"".join(map(self._piece, tokens)).decode(errors="replace")

    def generate(
        self, prompt: Sequence[int], sampling: Sampling, matcher: Matcher | None
    ) -> Iterator[int]:
        """See `Backend`.

        The context keeps the last tokens, so the beginning that a new prompt shares with them is
        not evaluated again.
        """
        numpy: Any = import_module("numpy")
        generator = numpy.random.default_rng(sampling.seed)
        tokens = list(prompt)
        for _ in range(sampling.max_tokens or 1):
            with self._lock:
                scores = self._scores(tokens)
            if matcher is not None:
                matcher.apply(scores)
            token = _choose(scores, tokens, sampling, generator)
            if matcher is not None:
                matcher.accept(token)
            if self._library.llama_vocab_is_eog(self._vocab, token):
                return
            tokens.append(token)
            yield token
            if matcher is not None and matcher.is_finished:
                return

    def _scores(self, tokens: list[int]) -> Any:
        """A copy of the scores for the token that follows these."""
        # At least one token is evaluated: the scores are those after the last one.
        shared = _shared_length(self._tokens, tokens[:-1])
        self.model.n_tokens = shared
        self.model.eval(tokens[shared:])
        self._tokens = list(tokens)
        numpy: Any = import_module("numpy")
        return numpy.ctypeslib.as_array(
            self._library.llama_get_logits_ith(self.model.ctx, -1), shape=(self.model.n_vocab(),)
        ).copy()

    def _piece(self, token: int) -> bytes:
        """The bytes of a token; empty for a token that the vocabulary does not have."""
        buffer = ctypes.create_string_buffer(_LONGEST_PIECE_BYTES)
        size = self._library.llama_token_to_piece(
            self._vocab, token, buffer, _LONGEST_PIECE_BYTES, 0, True
        )
        return buffer.raw[: max(size, 0)]


def _shared_length(first: list[int], second: list[int]) -> int:
    """How many tokens two lists share at their beginning."""
    for index, (token, other) in enumerate(zip(first, second, strict=False)):
        if token != other:
            return index
    return min(len(first), len(second))


def _choose(scores: Any, tokens: list[int], sampling: Sampling, generator: Any) -> int:
    """Choose the next token from the scores, in the order of llama.cpp.

    That is: the penalty, `top_k`, `top_p`, `min_p`, and the temperature last.
    """
    numpy: Any = import_module("numpy")
    options = dict(_DEFAULTS)
    for name in _DEFAULTS:
        value = getattr(sampling, name)
        if value is not None:
            options[name] = value
    penalty, temperature = options["repetition_penalty"], options["temperature"]
    if penalty != 1.0:
        seen = sorted(set(tokens))
        scores[seen] = numpy.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    if temperature == 0:
        return int(scores.argmax())
    # The best tokens, from the best on; `top_k=0` takes all.
    order: Any = numpy.argsort(-scores, kind="stable")[: options["top_k"] or None]
    weights: Any = numpy.exp((scores[order] - scores[order[0]]).astype(numpy.float64))
    shares = weights / weights.sum()
    is_in_top_p: Any = numpy.cumsum(shares) - shares < options["top_p"]
    is_candidate: Any = is_in_top_p & (shares >= options["min_p"] * shares[0])
    is_candidate[0] = True  # even with `top_p=0`
    order, weights = order[is_candidate], weights[is_candidate] ** (1 / temperature)
    return int(generator.choice(order, p=weights / weights.sum()))
