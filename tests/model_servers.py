"""Real model servers for tests, without a model: llama.cpp's server with random weights, and
LiteLLM's proxy with mock answers.

Installed by `scripts/real-servers.sh` into the cache of the MCP servers (see `mcp_servers`), each
into an environment of its own. Where they are not, every test that needs one is skipped with the
same line: they are large, and would use up the time that the MCP servers have.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING

import httpx2
import mcp_servers
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

mcp_servers.WANTED.update(
    {
        "llama-cpp": ("xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy<3"),
        "litellm": ("litellm[proxy]==1.106.2",),
    },
)

GGUF = """
import gguf, numpy
width, hidden, tokens = 32, 64, ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "\\u2581"]
kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256, gguf.TokenType.NORMAL]
file = gguf.GGUFWriter(str(path), "llama")
file.add_context_length(4096); file.add_embedding_length(width); file.add_block_count(1); file.add_feed_forward_length(hidden)
file.add_head_count(2); file.add_head_count_kv(2); file.add_layer_norm_rms_eps(1e-5); file.add_rope_dimension_count(width // 2)
file.add_vocab_size(len(tokens)); file.add_tokenizer_model("llama"); file.add_token_list(tokens)
file.add_token_scores([0.0] * len(tokens)); file.add_token_types(kinds)
file.add_add_space_prefix(False); file.add_bos_token_id(1); file.add_eos_token_id(2); file.add_unk_token_id(0)
chance = numpy.random.default_rng(0)
shapes = {"token_embd": (len(tokens), width), "output": (len(tokens), width), "blk.0.ffn_gate": (hidden, width),
          "blk.0.ffn_up": (hidden, width), "blk.0.ffn_down": (width, hidden),
          **{f"blk.0.attn_{name}": (width, width) for name in ("q", "k", "v", "output")}}
for name, shape in shapes.items():
    file.add_tensor(f"{name}.weight", chance.normal(0, 0.02, shape).astype(numpy.float32))
for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
    file.add_tensor(f"{name}.weight", numpy.ones(width, numpy.float32))
file.write_header_to_file(); file.write_kv_data_to_file(); file.write_tensors_to_file(); file.close()
"""
"""Writes a Llama with random weights, whose tokens are bytes, to `path`."""
LLAMA = f"""
import sys, time
from pathlib import Path
import xllamacpp
path, port, template, most = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
{GGUF}
settings = xllamacpp.CommonParams()
settings.model.path = str(path)
settings.n_ctx, settings.n_predict, settings.n_parallel, settings.port = 8192, most, 2, port
settings.warmup, settings.use_jinja, settings.endpoint_props = False, True, True
settings.cpuparams.n_threads = 1
if template.exists():
    settings.chat_template = template.read_text()
server = xllamacpp.Server(settings)
time.sleep(3600)
"""

ALTERNATING = """
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}
{{ '<start_of_turn>' + message['role'] + '\\n' + message['content'] + '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""


def _home(kind: str) -> Path:
    if not mcp_servers.INSISTS and not mcp_servers.is_installed(kind):
        pytest.skip(
            "llama.cpp's server and LiteLLM's proxy are not installed: `scripts/real-servers.sh` installs them",
        )
    return mcp_servers.installed(kind)


@contextlib.contextmanager
def llama_server(folder: Path, template: str = "", *, most_tokens: int = 8) -> Iterator[str]:
    """llama.cpp's server on loopback; its base URL.

    The answers are chance, and have at most so many tokens.
    """
    home = _home("llama-cpp")
    (folder / "serve.py").write_text(LLAMA)
    if template:
        (folder / "template.jinja").write_text(template)
    port = mcp_servers.free_port()
    command = [
        str(home / "bin" / "python"),
        str(folder / "serve.py"),
        str(folder / "tiny.gguf"),
        str(port),
        str(folder / "template.jinja"),
        str(most_tokens),
    ]
    with mcp_servers.listening(command, {}, port):
        ends = time.monotonic() + 60
        while (
            httpx2.get(f"http://127.0.0.1:{port}/health", timeout=60).status_code == 503
            and time.monotonic() < ends
        ):
            time.sleep(0.05)  # it listens before its model is loaded
        yield f"http://127.0.0.1:{port}/v1"


@contextlib.contextmanager
def litellm_proxy(folder: Path, models: dict[str, dict]) -> Iterator[str]:
    """LiteLLM's proxy on loopback, which needs no key; its base URL.

    `models` are `litellm_params` by name.
    """
    home = _home("litellm")
    listed = [
        {"model_name": name, "litellm_params": {"api_key": "x", "max_retries": 0, **each}}
        for name, each in models.items()
    ]
    config = {
        "model_list": listed,
        "litellm_settings": {"num_retries": 0},
        "router_settings": {"num_retries": 0},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    port = mcp_servers.free_port()
    env = {
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_DOCS": "1",
    }
    command = [
        str(home / "bin" / "litellm"),
        "--config",
        str(folder / "config.yaml"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with mcp_servers.listening(command, env, port):
        yield f"http://127.0.0.1:{port}/v1"
