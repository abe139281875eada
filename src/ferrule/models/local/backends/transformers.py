"""Models in this process through `transformers`, which the user installs with `torch`."""

from __future__ import annotations

import logging
from importlib import import_module
from inspect import signature
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import BadRequestError, ConfigurationError, importing
from ferrule.models.local.backends.backend import PLAIN_TEMPLATE
from ferrule.models.local.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ferrule.models.local.backends.backend import Sampling
    from ferrule.models.local.matcher import Matcher

_log = logging.getLogger("ferrule.models")
_NEEDED = (
    "A model in this process needs torch and transformers: pip install torch transformers. "
    "ferrule does not install them, because the right torch depends on the machine "
    "(https://pytorch.org/get-started)."
)


class TransformersBackend:
    """A causal language model and its tokenizer, from a folder or the Hugging Face Hub."""

    def __init__(self, source: str, *, device: str | None = None, dtype: str = "auto") -> None:
        with importing(_NEEDED):
            torch, transformers = import_module("torch"), import_module("transformers")
        self._torch: Any = torch
        self._transformers: Any = transformers
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
            self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigurationError(
                f"The model {source!r} could not be loaded: {str(error).strip()}"
            ) from error
        self.model.to(device or _best_device(torch)).eval()
        # The second name is that of older versions, and of models that bring their own code.
        takes_cache = "cache" in signature(self.model.forward).parameters
        self._cache_name = "cache" if takes_cache else "past_key_values"
        self._lock = Lock()
        self._vocabulary: Vocabulary | None = None
        config = self.model.config.get_text_config()
        self._score_count: int = config.vocab_size
        """How many scores the model gives, which may be more than there are tokens."""
        self.window: int | None = getattr(config, "max_position_embeddings", None)
        self._defaults = self.model.generation_config
        self.ends = _ends(self._defaults, self.tokenizer)
        self._template: str | None = None
        """The chat template; None for the tokenizer's own."""
        if self.tokenizer.chat_template:
            # With tools: some tokenizers have a template of its own for them.
            self.reads_tools = "tools" in self.tokenizer.get_chat_template(tools=[{}])
        else:
            self._template = PLAIN_TEMPLATE
            self.reads_tools = False
            _log.warning(
                "The tokenizer of %s has no chat template: its prompts are plain text.", source
            )

    def prompt(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """See `Backend`."""
        jinja2: Any = import_module("jinja2")  # transformers needs it for templates
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **variables,
            )
        except jinja2.TemplateError as error:
            raise BadRequestError(f"the chat template refuses the conversation: {error}") from error

    @property
    def vocabulary(self) -> Vocabulary:
        """See `Backend`."""
        if self._vocabulary is None:
            if not self.tokenizer.is_fast:
                raise ConfigurationError(
                    "A constraint needs a tokenizer of the package `tokenizers` "
                    '(a "fast" one), and this model has none.'
                )
            text: str = self.tokenizer.backend_tokenizer.to_str()
            self._vocabulary = Vocabulary.from_json(
                text, eos=sorted(self.ends), size=self._score_count
            )
        return self._vocabulary

    def text(self, tokens: Sequence[int]) -> str:
        """See `Backend`."""
        return self.tokenizer.decode(
            tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def generate(
        self, prompt: Sequence[int], sampling: Sampling, matcher: Matcher | None
    ) -> Iterator[int]:
        """See `Backend`.

        Each answer has its own random generator: a seed gives the same answer even when other
        threads generate.
        """
        torch = self._torch
        tokens = torch.tensor([list(prompt)], device=self.model.device)
        new_tokens, cache = tokens, None
        is_greedy = self._is_greedy(sampling)
        warpers = self._warpers(sampling, is_greedy=is_greedy)
        generator = torch.Generator(device=tokens.device)
        if sampling.seed is None:
            generator.seed()
        else:
            generator.manual_seed(sampling.seed)
        for _ in range(sampling.max_tokens or 1):
            with self._lock, torch.inference_mode():
                output = self.model(
                    input_ids=new_tokens,
                    use_cache=True,
                    logits_to_keep=1,
                    **{self._cache_name: cache},
                )
                cache = output[self._cache_name]
                scores = output.logits[:, -1].float()
                # The matrix of a model may be padded: these scores belong to no token.
                scores[:, len(self.tokenizer) :] = -torch.inf
                if matcher is not None:
                    matcher.apply(scores[0])
                for warp in warpers:
                    scores = warp(tokens, scores)
                if is_greedy:
                    new_tokens = scores.argmax(-1, keepdim=True)
                else:
                    new_tokens = torch.multinomial(scores.softmax(-1), 1, generator=generator)
                tokens = torch.cat((tokens, new_tokens), dim=-1)
            token = int(new_tokens)
            if matcher is not None:
                matcher.accept(token)
            if token in self.ends:
                return
            yield token
            if matcher is not None and matcher.is_finished:
                return

    def _warpers(self, sampling: Sampling, *, is_greedy: bool) -> list[Any]:
        """The functions that change scores before a token is chosen, in transformers' own order.

        The order is that of its `generate`. The most likely token depends on the penalty alone.
        """
        defaults, transformers = self._defaults, self._transformers

        def setting(name: str) -> Any:
            value = getattr(sampling, name)
            if value is None:
                value = getattr(defaults, name, None)
            return value

        warpers: list[Any] = []
        penalty = setting("repetition_penalty")
        if penalty not in {None, 1.0}:
            warpers.append(transformers.RepetitionPenaltyLogitsProcessor(penalty))
        if is_greedy:
            return warpers
        temperature, top_k = setting("temperature"), setting("top_k")
        top_p, min_p = setting("top_p"), setting("min_p")
        if temperature not in {None, 1.0}:
            warpers.append(transformers.TemperatureLogitsWarper(float(temperature)))
        if top_k:
            warpers.append(transformers.TopKLogitsWarper(top_k))
        if top_p is not None and top_p < 1:
            warpers.append(transformers.TopPLogitsWarper(top_p))
        if min_p:
            warpers.append(transformers.MinPLogitsWarper(min_p))
        return warpers

    def _is_greedy(self, sampling: Sampling) -> bool:
        """Whether the most likely token is taken.

        A model's own default of `do_sample=False` holds unless a setting of sampling is given.
        """
        if sampling.temperature is not None:
            return sampling.temperature == 0
        has_setting = any(
            value is not None for value in (sampling.top_p, sampling.top_k, sampling.min_p)
        )
        return self._defaults.do_sample is False and not has_setting


def _best_device(torch: Any) -> str:
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def _ends(defaults: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer.

    A model may have different ones for the end of a turn and of a text.
    """
    ends: list[int | None] = [tokenizer.eos_token_id]
    ends_of_model: Any = defaults.eos_token_id
    if isinstance(ends_of_model, (list, tuple)):
        ends += cast("list[int | None]", ends_of_model)
    else:
        ends.append(ends_of_model)
    return frozenset(token for token in ends if token is not None)
