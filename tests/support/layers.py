"""Decoder layers of language models from transformers, with random weights, at full size or with small dimensions."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

from support import TESTS

MODELS = {"tinyllama": "tinyllama-1.1b", "qwen2.5-7b": "qwen2.5-7b"}

_SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "num_hidden_layers": 1,
}


class DecoderLayer(nn.Module):
    """A decoder layer with its rotary embedding and a causal mask. Maps hidden states (1, S, H) to hidden states."""

    def __init__(self, model: str, *, small: bool, attention: str = "sdpa") -> None:
        super().__init__()
        config, layer, rotary = _classes(model)
        fields = json.loads((TESTS / "data" / "models" / f"{MODELS[model]}.json").read_text())
        fields = {k: v for k, v in fields.items() if k not in ("architectures", "model_type", "torch_dtype")}
        self.config = config(**{**fields, **(_SMALL if small else {"num_hidden_layers": 1})})
        self.config._attn_implementation = attention
        self.layer = layer(self.config, layer_idx=0)
        self.rotary = rotary(self.config)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(hidden.shape[1]).unsqueeze(0)
        result = self.layer(hidden, position_embeddings=self.rotary(hidden, positions), attention_mask=None)
        return result[0] if isinstance(result, tuple) else result


def _classes(model: str) -> tuple[Any, Any, Any]:
    if model == "tinyllama":
        from transformers.models.llama import modeling_llama as code

        return code.LlamaConfig, code.LlamaDecoderLayer, code.LlamaRotaryEmbedding
    from transformers.models.qwen2 import modeling_qwen2 as code

    return code.Qwen2Config, code.Qwen2DecoderLayer, code.Qwen2RotaryEmbedding


def make_layer(model: str, dtype: torch.dtype, *, small: bool) -> DecoderLayer:
    """Returns a decoder layer in evaluation mode.

    Args:
        model: name of the model.
        dtype: data type of the weights.
        small: whether dimensions are small and weights random. Weights of full-size layers are uninitialised.
    """
    torch.manual_seed(0)
    if small:
        return DecoderLayer(model, small=True).to(dtype).eval()
    with torch.device("meta"):
        layer = DecoderLayer(model, small=False).to(dtype).eval()
    return layer.to_empty(device="cpu")
