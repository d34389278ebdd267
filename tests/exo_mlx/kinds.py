"""Tiny models of mlx-lm's own classes, one for every kind of cache, and an engine driven step by step."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from exocli import CancelToken, Event, Finished, OpenContext, Prepared, Request, Sampling, Text
from mlx.utils import tree_flatten, tree_map_with_path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from exo_mlx.engine import MlxEngine
from exo_mlx.options import LocalOptions

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = len(SPECIAL) + 256
# As reasoning templates do: what opens a reply is not what stands before it in the next turn.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n(thinks)\n{% endif %}"
)
_PLAIN = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
WINDOW = 24
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"model_type": "llama", **_PLAIN},
    "sliding": {
        "model_type": "gemma3_text",
        **_PLAIN,
        "query_pre_attn_scalar": 32,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
    },
    "recurrent": {
        "model_type": "mamba2",
        "hidden_size": 32,
        "num_heads": 4,
        "head_dim": 16,
        "intermediate_size": 64,
        "state_size": 8,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": "auto",
        "max_position_embeddings": 1024,
    },
    "hybrid": {
        "model_type": "qwen3_next",
        **_PLAIN,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 0,
        "num_experts_per_tok": 0,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
    },
    "listed": {
        "model_type": "falcon_h1",
        **_PLAIN,
        "attention_bias": False,
        "mamba_d_conv": 4,
        "mamba_d_head": 16,
        "mamba_d_ssm": 64,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "mamba_n_heads": 4,
        "vocab_size": VOCABULARY,
    },
    "chunked": {
        "model_type": "llama4",
        "text_config": {
            **_PLAIN,
            "model_type": "llama4_text",
            "num_hidden_layers": 4,
            "attention_bias": False,
            "attention_chunk_size": WINDOW,
            "interleave_moe_layer_step": 8,
            "intermediate_size_mlp": 64,
            "num_experts_per_tok": 1,
            "num_local_experts": 2,
            "rope_scaling": None,
            "use_qk_norm": True,
            "vocab_size": VOCABULARY,
        },
    },
}


def write(path: Path, kind: str) -> Path:
    """A model folder whose random weights are large enough that its greedy text varies."""
    from mlx_lm.utils import MODEL_REMAPPING

    path.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(path)
    config = {"vocab_size": VOCABULARY, "eos_token_id": 2, **CONFIGS[kind]}
    name = config["model_type"]
    module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(name, name)}")
    model = module.Model(module.ModelArgs.from_dict(config))
    mx.random.seed(3)

    def draw(place: str, array: Any) -> Any:
        if array.ndim >= 2:
            return mx.random.normal(array.shape) * (1.5 / array.shape[-1] ** 0.5)
        # State-space parameters keep mlx-lm's own start: they decide whether the state decays.
        own = any(part in place for part in ("A_log", "dt_bias", ".D"))
        return array if own else array + 0.1 * mx.random.normal(array.shape)

    model.update(tree_map_with_path(draw, model.parameters()))
    arrays = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(path / "model.safetensors"), arrays, {"format": "mlx"})
    (path / "config.json").write_text(json.dumps(config))
    return path


def _write_tokenizer(path: Path) -> None:
    """One token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(SPECIAL + alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))


class Driver:
    """A real engine in this thread; its own commands are applied at the next step, as the core does. `lazy`:
    tokens are held back for a call and prompts end as mlx-lm ends them, which is so on a GPU."""

    def __init__(self, path: Path, *, lazy: bool = False, **options: Any) -> None:
        self.path = path
        self.options = options
        self.name = path.name
        self._asked: list[Any] = []
        context = OpenContext(
            backend="mlx",
            model=str(path),
            options=LocalOptions(**{"chunk": 8, **options}),
            cache_dir=path,
            log=lambda text: None,
            progress=lambda done, total: None,
            ask=self._asked.append,
            cancel=CancelToken(),
        )
        self.engine = MlxEngine(context)
        if lazy:
            self.batch.eager = self.engine._generator._joined = False
        self.cancels: dict[str, CancelToken] = {}
        self.events: dict[str, list[Event]] = {}
        self.prepared: dict[str, Prepared] = {}

    @property
    def batch(self) -> Any:
        return self.engine._generator._generation_batch

    @property
    def lacking(self) -> int:
        """How many of the tokens that were said are not in the KV: the last one, if it was not held back."""
        return int(self.batch.eager)

    def start(self, prompt: str, max_tokens: int | None = 6, **fields: Any) -> str:
        fields = {"sampling": Sampling(temperature=0.0), "logprobs": 0, **fields}
        if "messages" not in fields:
            fields |= {"task": "complete", "prompt": prompt}
        prepared = self.engine.prepare(Request(max_tokens=max_tokens, **fields))
        self.submit(prepared)
        return prepared.id

    def start_tokens(self, tokens: list[int], max_tokens: int = 6) -> str:
        """The same for a prompt of these very tokens: random text does not survive being text."""
        request = Request(
            task="complete",
            prompt="a",
            max_tokens=max_tokens,
            logprobs=0,
            sampling=Sampling(temperature=0.0),
        )
        made = self.engine.prepare(request)
        self.submit(
            replace(
                made,
                tokens=tuple(tokens),
                prompt_tokens=len(tokens),
                reuse=self.engine._index.lookup(tokens),
                settings={**made.settings, "keep_at": len(tokens) - 1},
            )
        )
        return made.id

    def submit(self, prepared: Prepared) -> None:
        self.prepared[prepared.id] = prepared
        self.cancels[prepared.id] = CancelToken()
        self.events[prepared.id] = []
        self.engine.submit(prepared, self.cancels[prepared.id])

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for event in self.engine.step():
                self.events[event.id].append(event)
            while self._asked:
                self.engine.apply(self._asked.pop(0))

    def finished(self, request_id: str) -> Finished | None:
        last = self.events[request_id][-1:]
        return last[0] if last and isinstance(last[0], Finished) else None

    def run(self, *ids: str) -> list[list[int]]:
        """Step until all of them are over; → their replies."""
        for _ in range(2000):
            if all(self.finished(one) for one in ids):
                return [self.tokens(one) for one in ids]
            self.step()
        raise AssertionError("a request did not end")

    def cancel(self, request_id: str) -> Finished:
        self.cancels[request_id].cancel()
        self.run(request_id)
        found = self.finished(request_id)
        assert found is not None
        return found

    def ask(self, prompt: str, max_tokens: int | None = 6, **fields: Any) -> tuple[list[int], int]:
        """→ the reply's tokens and how many of the prompt's were cached."""
        one = self.start(prompt, max_tokens, **fields)
        (tokens,) = self.run(one)
        found = self.finished(one)
        assert found is not None
        return tokens, found.usage.cached_tokens

    def tokens(self, request_id: str) -> list[int]:
        """The reply so far. As ids: random text need not be UTF-8."""
        texts = [event for event in self.events[request_id] if isinstance(event, Text)]
        return [entry["id"] for text in texts for entry in text.logprobs or ()]

    def encode(self, prompt: str) -> list[int]:
        return list(self.engine._loaded.tokenizer.encode(prompt))

    def plainly(self, tokens: list[int], max_tokens: int = 6) -> list[int]:
        """The greedy reply by the model alone: no cache, no batch, every token from the whole prompt."""
        loaded = self.engine._loaded
        new: list[int] = []
        while len(new) < max_tokens:
            token = int(loaded.model(mx.array([tokens + new]))[0, -1].argmax().item())
            if token in loaded.end_tokens:
                break
            new.append(token)
        return new


def prompt(length: int, seed: int = 0) -> str:
    """Text of `length` tokens, another one for each seed."""
    letters = "abcdfgijkmnopqrstuvwxyz"
    return "".join(letters[(i * i + 7 * i * seed + i // 3 + seed) % len(letters)] for i in range(length))
