"""Models in this process through `llama-cpp-python`, which the user installs."""

from __future__ import annotations

from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

from ferrule.errors import BadRequestError, ConfigurationError
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
_LONGEST_PIECE = 256


class LlamaBackend:
    """A model in a GGUF file. Threads take turns with its context, token by token."""

    def __init__(self, path: str, *, context_tokens: int = 0, gpu_layers: int = -1) -> None:
        try:
            found: Any = import_module("llama_cpp")
        except ImportError as error:
            msg = "A GGUF model in this process needs llama-cpp-python, which is not installed. Install it: pip install llama-cpp-python"
            raise ConfigurationError(msg) from error
        self._library = found
        try:
            self.model: Any = found.Llama(
                path,
                n_ctx=context_tokens,
                n_gpu_layers=gpu_layers,
                verbose=False,
            )
        except ValueError as error:
            raise ConfigurationError(f"The model {path!r} could not be loaded: {error}") from error
        self._vocab: Any = found.llama_model_get_vocab(self.model.model)
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
        try:
            text: str = self._format(messages=messages, tools=tools, **variables).prompt
        except (
            ValueError,
            import_module("jinja2").TemplateError,
        ) as error:  # its `raise_exception` raises `ValueError`
            raise BadRequestError(f"the chat template refuses the conversation: {error}") from error
        return self.model.tokenize(
            text.encode(),
            add_bos=not (self._bos and text.startswith(self._bos)),
            special=True,
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """See `Backend`."""
        if self._vocabulary is None:
            self._vocabulary = self._read_vocabulary()
        return self._vocabulary

    def _read_vocabulary(self) -> Vocabulary:
        library, vocab, size = self._library, self._vocab, self.model.n_vocab()
        ends = [each for each in range(size) if library.llama_vocab_is_eog(vocab, each)]
        special = [each for each in range(size) if library.llama_vocab_is_control(vocab, each)]
        return Vocabulary([self._piece(each) for each in range(size)], eos=ends, special=special)

    def text(self, tokens: Sequence[int]) -> str:
        """See `Backend`."""
        return b"".join(map(self._piece, tokens)).decode(errors="replace")

    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        matcher: Matcher | None,
    ) -> Iterator[int]:
        """See `Backend`. The context keeps the last tokens, so the beginning that a new prompt shares with them is not evaluated again."""
        chance: Any = import_module("numpy").random.default_rng(sampling.seed)
        tokens = list(prompt)
        for _ in range(sampling.max_tokens or 1):
            with self._lock:
                scores = self._scores(tokens)
            if matcher is not None:
                matcher.apply(scores)
            token = _choose(scores, tokens, sampling, chance)
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
        known, most = self._tokens, min(len(self._tokens), len(tokens) - 1)
        same = next((at for at in range(most) if known[at] != tokens[at]), most)
        self.model.n_tokens = same
        self.model.eval(tokens[same:])
        self._tokens = list(tokens)
        numpy: Any = import_module("numpy")
        return numpy.ctypeslib.as_array(
            self._library.llama_get_logits_ith(self.model.ctx, -1),
            shape=(self.model.n_vocab(),),
        ).copy()

    def _piece(self, token: int) -> bytes:
        import ctypes

        made = ctypes.create_string_buffer(_LONGEST_PIECE)
        size = self._library.llama_token_to_piece(self._vocab, token, made, _LONGEST_PIECE, 0, True)
        return made.raw[:size] if size > 0 else b""


def _choose(scores: Any, tokens: list[int], sampling: Sampling, chance: Any) -> int:
    """Choose the next token from the scores."""
    numpy: Any = import_module("numpy")
    wanted = {
        name: default if getattr(sampling, name) is None else getattr(sampling, name)
        for name, default in _DEFAULTS.items()
    }
    if wanted["repetition_penalty"] != 1.0:
        seen = sorted(set(tokens))
        scores[seen] = numpy.where(
            scores[seen] > 0,
            scores[seen] / wanted["repetition_penalty"],
            scores[seen] * wanted["repetition_penalty"],
        )
    if wanted["temperature"] == 0:
        return int(scores.argmax())
    order: Any = numpy.argsort(-scores, kind="stable")[: wanted["top_k"] or None]
    weights: Any = numpy.exp((scores[order] - scores[order[0]]).astype(numpy.float64))
    shares = weights / weights.sum()
    kept: Any = (numpy.cumsum(shares) - shares < wanted["top_p"]) & (
        shares >= wanted["min_p"] * shares[0]
    )
    kept[0] = True
    order, weights = order[kept], weights[kept] ** (1 / wanted["temperature"])
    return int(chance.choice(order, p=weights / weights.sum()))
