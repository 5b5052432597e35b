"""Language models of several families with small random weights, for tests. Nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from deplodock.extras.llm.models import build_model

_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 67,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "dtype": torch.float32,
}
_GEMMA = {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "mistral": ("MistralConfig", {"sliding_window": 8}),
    "gemma2": ("Gemma2Config", _GEMMA),
    "gemma3": ("Gemma3TextConfig", {**_GEMMA, "sliding_window_pattern": 2}),
    "phi3": ("Phi3Config", {}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": ("Qwen3MoeConfig", _EXPERTS),
}
"""Family -> configuration class in transformers, and options that differ from the other families."""

PROMPT = (5, 17, 42, 3, 66, 28, 11)


def tiny_config(family: str, **changes: Any) -> Any:
    """Returns the configuration of a tiny model; `changes` are options of the configuration."""
    name, own = FAMILIES[family]
    fields = {**_COMMON, **own, **changes}
    if family == "gpt2":  # GPT-2 has other names for these options.
        renamed = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        dropped = (*renamed, "num_key_value_heads", "max_position_embeddings", "tie_word_embeddings")
        fields = {k: v for k, v in fields.items() if k not in dropped}
    return getattr(transformers, name)(**fields)


def tiny_model(family: str, **changes: Any) -> Any:
    """Returns a tiny model with random weights, which are the same in every call."""
    return build_model(tiny_config(family, **changes), seed=0)


def greedy(model: Any, tokens: int) -> list[int]:
    """Returns the tokens that transformers generates greedily after a fixed prompt."""
    prompt = torch.tensor([PROMPT])
    with torch.no_grad():
        found = model.generate(prompt, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return found[0, len(PROMPT) :].tolist()
