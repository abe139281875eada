"""Models in this process through `transformers`, which the user installs with `torch`."""

from __future__ import annotations

import logging
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import BadRequestError, ConfigurationError
from ferrule.models.local.backends.backend import PLAIN_TEMPLATE
from ferrule.models.local.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ferrule.models.local.backends.backend import Sampling
    from ferrule.models.local.matcher import Matcher

_log = logging.getLogger("ferrule.models")
_NEEDED = (
    "A model in this process needs torch and transformers: pip install torch transformers. ferrule does not install them, because the "
    "right torch depends on the machine (https://pytorch.org/get-started)."
)


class TransformersBackend:
    """A causal language model and its tokenizer, from a folder or the Hugging Face Hub."""

    def __init__(self, source: str, *, device: str | None = None, dtype: str = "auto") -> None:
        try:
            torch, transformers = import_module("torch"), import_module("transformers")
        except ImportError as error:
            raise ConfigurationError(_NEEDED) from error
        self._torch: Any = torch
        self._transformers: Any = transformers
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
            self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigurationError(
                f"The model {source!r} could not be loaded: {str(error).strip()}",
            ) from error
        self.model.to(device or _best_device(torch)).eval()
        self._lock = Lock()
        self._vocabulary: Vocabulary | None = None
        self._width: int = self.model.config.get_text_config().vocab_size
        self._defaults = self.model.generation_config
        self.ends = _ends(self._defaults, self.tokenizer)
        self.window: int | None = getattr(
            self.model.config.get_text_config(),
            "max_position_embeddings",
            None,
        )
        self._plain = None if self.tokenizer.chat_template else PLAIN_TEMPLATE
        if self._plain:
            _log.warning(
                "The tokenizer of %s has no chat template: its prompts are plain text.",
                source,
            )
        self.reads_tools = self._plain is None and "tools" in self.tokenizer.get_chat_template(
            tools=[{}],
        )

    def prompt(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """See `Backend`."""
        template_error: Any = import_module(
            "jinja2",
        ).TemplateError  # transformers needs it for templates
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self._plain,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **variables,
            )
        except template_error as error:
            raise BadRequestError(f"the chat template refuses the conversation: {error}") from error

    @property
    def vocabulary(self) -> Vocabulary:
        """See `Backend`."""
        if self._vocabulary is None:
            if not self.tokenizer.is_fast:
                msg = 'A constraint needs a tokenizer of the package `tokenizers` (a "fast" one), and this model has none.'
                raise ConfigurationError(msg)
            text: str = self.tokenizer.backend_tokenizer.to_str()
            self._vocabulary = Vocabulary.from_json(text, eos=sorted(self.ends), size=self._width)
        return self._vocabulary

    def text(self, tokens: Sequence[int]) -> str:
        """See `Backend`."""
        return self.tokenizer.decode(
            tokens,
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )

    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        matcher: Matcher | None,
    ) -> Iterator[int]:
        """See `Backend`. Each answer has its own random generator: a seed gives the same answer even when other threads generate."""
        torch = self._torch
        seen = torch.tensor([list(prompt)], device=self.model.device)
        fed, cache = seen, None
        warpers, is_greedy = self._warpers(sampling)
        chance = torch.Generator(device=seen.device)
        chance.seed() if sampling.seed is None else chance.manual_seed(sampling.seed)
        for _ in range(sampling.max_tokens or 1):
            with self._lock, torch.inference_mode():
                found = self.model(
                    input_ids=fed,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                cache, scores = found.past_key_values, found.logits[:, -1].float()
                scores[
                    :,
                    len(self.tokenizer) :,
                ] = -torch.inf  # rows that only pad the matrix are not tokens
                if matcher is not None:
                    matcher.apply(scores[0])
                for warp in warpers:
                    scores = warp(seen, scores)
                fed = (
                    scores.argmax(-1, keepdim=True)
                    if is_greedy
                    else torch.multinomial(scores.softmax(-1), 1, generator=chance)
                )
                seen = torch.cat((seen, fed), dim=-1)
            token = int(fed)
            if matcher is not None:
                matcher.accept(token)
            if token in self.ends:
                return
            yield token
            if matcher is not None and matcher.is_finished:
                return

    def _warpers(self, sampling: Sampling) -> tuple[list[Any], bool]:
        """The functions that change scores before a token is drawn, in transformers' order; and whether to take the best token."""
        own, made = self._defaults, self._transformers
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        given = {name: getattr(sampling, name) for name in names}
        is_greedy = given["temperature"] == 0
        if given["temperature"] is None and own.do_sample is False:
            is_greedy = all(given[name] is None for name in names[1:4])
        values: dict[str, Any] = {
            name: getattr(own, name, None) if value is None else value
            for name, value in given.items()
        }
        warpers: list[Any] = []
        if values["repetition_penalty"] not in {None, 1.0}:
            warpers.append(made.RepetitionPenaltyLogitsProcessor(values["repetition_penalty"]))
        if is_greedy:
            return warpers, True
        if values["temperature"] not in {None, 1.0}:
            warpers.append(made.TemperatureLogitsWarper(float(values["temperature"])))
        if values["top_k"]:
            warpers.append(made.TopKLogitsWarper(values["top_k"]))
        if values["top_p"] is not None and values["top_p"] < 1:
            warpers.append(made.TopPLogitsWarper(values["top_p"]))
        if values["min_p"]:
            warpers.append(made.MinPLogitsWarper(values["min_p"]))
        return warpers, False


def _best_device(torch: Any) -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _ends(defaults: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer: several if a model has different ones for the end of a turn and of a text."""
    known = defaults.eos_token_id
    found = cast("list[int | None]", known if isinstance(known, (list, tuple)) else [known])
    return frozenset(each for each in (*found, tokenizer.eos_token_id) if each is not None)
