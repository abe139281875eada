"""A tiny Llama with random weights and a tokenizer of bytes, on disk. Its answers are chance."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("transformers") is None,
    reason="torch and transformers are not installed: pip install torch transformers",
)
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:{% for t in tools %} {{ t.function.name }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT_TEMPLATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)


def save_tiny_llama(
    folder: Path,
    *,
    template: str | None = TEMPLATE,
    window: int = 4096,
    padded: int = 320,
) -> str:
    """Save the model; returns its folder.

    `padded` rows of scores are more than the tokenizer has tokens.
    """
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {
        letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer, raw.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        decoders.ByteLevel(),
    )
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **named)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<tool_call>"]},
    )
    tokenizer.chat_template = template
    config = transformers.LlamaConfig(
        vocab_size=padded, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=window, bos_token_id=256, eos_token_id=[257, tokenizer.convert_tokens_to_ids("<|im_end|>")],
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
