"""Language models of which batch and length vary: one program for all of them, down to one CUDA text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.tiny_models import tiny_model
from torch import nn
from torch.export import Dim

from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.export import capture

BATCH, LENGTH = Dim("batch", min=1, max=1000), Dim("length", min=1, max=1000)
PAIRS = [(1, 1), (1, 2), (2, 1), (7, 7), (1, 128), (128, 1), (7, 128), (1, 1000), (1000, 2)]


class Decoder(nn.Module):
    """Embedding, rotary positions, grouped causal attention over a cache and the new tokens, a gated MLP, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(31, 16), nn.Linear(16, 31)
        self.q, self.kv, self.o = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 16)
        self.norm, self.up, self.down = nn.RMSNorm(16), nn.Linear(16, 48), nn.Linear(24, 16)

    def rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[:, None] * torch.tensor([1.0, 0.1])
        cos, sin = angles.cos(), angles.sin()
        left, right = x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    def forward(self, tokens: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
        batch, length = tokens.shape
        before = keys.shape[2]
        x = self.embed(tokens)
        h = self.norm(x)
        positions = before + torch.arange(length)
        q = self.rotated(self.q(h).view(batch, length, 4, 4).transpose(1, 2), positions)
        k, v = self.kv(h).view(batch, length, 2, 4).transpose(1, 2).chunk(2, 1)
        keys, values = torch.cat([keys, self.rotated(k, positions)], 2), torch.cat([values, v], 2)
        seen = torch.arange(before + length) <= positions[:, None]
        a = F.scaled_dot_product_attention(q, keys, values, seen, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, 16))
        gate, up = self.up(self.norm(x)).chunk(2, -1)
        x = x + self.down(F.silu(gate) * up)
        return self.out(x[:, -1]), keys, values


class Causal(nn.Module):
    """Causal attention without a mask, as PyTorch's own operator has it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def assert_equal(program: CompiledFunction, model: nn.Module, args: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(program(*args), model(*args), rtol=1e-3, atol=1e-4)


def compiled(model: nn.Module, args: Any, shapes: Any, executor: str) -> CompiledFunction:
    return CompiledFunction(capture(model, args, dynamic_shapes=shapes), "sm_90a", executor)


@pytest.mark.parametrize("executor", ["reference", "emulator"])
def test_causal_attention(executor: str):
    torch.manual_seed(0)
    model = Causal()
    program = compiled(model, (torch.randn(3, 5, 8),), ({0: BATCH, 1: LENGTH},), executor)
    for b, n in PAIRS if executor == "reference" else [(1, 1), (2, 1), (1, 7), (2, 70)]:
        assert_equal(program, model, (torch.randn(b, n, 8),))


def decoder_arguments(batch: int, length: int, before: int) -> tuple[torch.Tensor, ...]:
    cache = torch.randn(2, batch, 1, before, 4)
    return torch.randint(0, 31, (batch, length)), cache[0], cache[1]


@pytest.mark.parametrize("executor", ["reference", "emulator"])
def test_prefill_and_decode_are_one_program(executor: str):
    torch.manual_seed(0)
    model = Decoder()
    cache = {0: BATCH, 2: Dim("before", min=0, max=1000)}
    args = decoder_arguments(3, 5, 4)
    program = compiled(model, args, ({0: BATCH, 1: LENGTH}, cache, cache), executor)
    many = [(1, 1, 0), (1, 7, 0), (2, 1, 7), (7, 2, 1), (1, 128, 0), (1, 1, 1000), (128, 1, 2), (1, 1000, 1)]
    for sizes in many if executor == "reference" else [(1, 1, 0), (2, 3, 0), (2, 1, 7)]:
        assert_equal(program, model, decoder_arguments(*sizes))


class Llama(nn.Module):
    """A model of transformers' with positions given, and attention written out: by itself it takes other ways where
    there is one sequence, or one token."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_model("llama", num_hidden_layers=1, attn_implementation="eager", max_position_embeddings=1024)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1])[None].expand(tokens.shape)
        return self.model(input_ids=tokens, position_ids=positions, use_cache=False).logits


def test_llama():
    model = Llama()
    program = compiled(model, (torch.randint(0, 67, (3, 5)),), ({0: BATCH, 1: LENGTH},), "reference")
    for b, n in PAIRS:
        assert_equal(program, model, (torch.randint(0, 67, (b, n)),))
