"""Language models: blocks of transformers and what came after them, heads and samplers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Built, inference, program

D, HEADS, LENGTH, VOCABULARY = 32, 4, 12, 50


def tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (2, LENGTH))


def states() -> Tensor:
    return torch.randn(2, LENGTH, D)


class CausalSelfAttention(nn.Module):
    """One fused projection, heads by view and transpose, a masked softmax."""

    def __init__(self, d: int = D, heads: int = HEADS, flash: bool = True) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.heads, self.flash = heads, flash
        self.register_buffer("bias", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, attention: nn.Module, mlp: nn.Module, d: int = D) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn, self.mlp = attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


def gelu_mlp(d: int = D, approximate: str = "tanh") -> nn.Module:
    return nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate), nn.Linear(4 * d, d))


class GPT(nn.Module):
    def __init__(self, flash: bool = True, layers: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, D), nn.Embedding(64, D)
        self.h = nn.ModuleList(Block(CausalSelfAttention(flash=flash), gelu_mlp()) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(D), nn.Linear(D, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits[:, [-1], :]
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


@program
def gpt_last_logits() -> Built:
    return inference(GPT()), (tokens(),)


@program
def gpt_without_flash() -> Built:
    return inference(GPT(flash=False)), (tokens(),)


@program
def gpt_loss() -> Built:
    return inference(GPT()), (tokens(), tokens())


class RMSNorm(nn.Module):
    def __init__(self, d: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rotary_tables(length: int, d: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    frequencies = 1.0 / base ** (torch.arange(0, d, 2).float() / d)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


class GroupedQueryAttention(nn.Module):
    """Rotary positions, fewer heads of keys than of queries; optional soft caps and norms of queries and keys."""

    def __init__(self, kv_heads: int = 2, cap: float = 0.0, normed: bool = False) -> None:
        super().__init__()
        self.size = D // HEADS
        self.q, self.o = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.k, self.v = (nn.Linear(D, kv_heads * self.size, bias=False) for _ in range(2))
        self.kv_heads, self.cap = kv_heads, cap
        self.norms = nn.ModuleList([RMSNorm(self.size), RMSNorm(self.size)]) if normed else None
        cos, sin = rotary_tables(64, self.size)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, HEADS, self.size).transpose(1, 2)
        k = self.k(x).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        v = self.v(x).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        cos, sin = self.cos[:t], self.sin[:t]
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = (y.repeat_interleave(HEADS // self.kv_heads, dim=1) for y in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.size)
        if self.cap:
            scores = self.cap * torch.tanh(scores / self.cap)
        mask = torch.full((t, t), float("-inf")).triu(1)
        y = torch.softmax((scores + mask).float(), dim=-1).type_as(q) @ v
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class SwiGLU(nn.Module):
    def __init__(self, d: int = D, hidden: int = 48) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(*s, bias=False) for s in ((d, hidden), (d, hidden), (hidden, d)))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaLayer(nn.Module):
    def __init__(self, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.n1, self.n2, self.attention, self.mlp = RMSNorm(D), RMSNorm(D), attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


@program
def llama_layer() -> Built:
    return inference(LlamaLayer(GroupedQueryAttention(), SwiGLU())), (states(),)


@program
def llama_layer_in_bfloat16() -> Built:
    return inference(LlamaLayer(GroupedQueryAttention(), SwiGLU())).bfloat16(), (states().bfloat16(),)


@program
def gemma_layer_with_soft_caps() -> Built:
    return inference(LlamaLayer(GroupedQueryAttention(cap=50.0), SwiGLU())), (states(),)


@program
def layer_with_normed_queries() -> Built:
    return inference(LlamaLayer(GroupedQueryAttention(kv_heads=1, normed=True), SwiGLU())), (states(),)


@program
def rotary_by_complex_numbers() -> Built:
    angles = torch.outer(torch.arange(LENGTH).float(), 1.0 / 10000.0 ** (torch.arange(0, 8, 2).float() / 8))
    turns = torch.polar(torch.ones_like(angles), angles)

    def run(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[None, :, None, :]).flatten(3).type_as(x)

    return run, (torch.randn(2, LENGTH, HEADS, 8),)


@program
def alibi_attention() -> Built:
    slopes = torch.tensor([2.0 ** -(8.0 * (i + 1) / HEADS) for i in range(HEADS)])

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        t = q.shape[-2]
        distance = torch.arange(t)[None, :] - torch.arange(t)[:, None]
        bias = slopes[:, None, None] * distance[None]
        bias = bias.masked_fill(distance > 0, float("-inf"))
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, -1) @ v

    return run, tuple(torch.randn(2, HEADS, LENGTH, 8) for _ in range(3))


class RelativeBias(nn.Module):
    """Buckets of relative positions as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, HEADS)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        distance = torch.arange(k.shape[2])[None, :] - torch.arange(q.shape[2])[:, None]
        sign, n = (distance > 0).long() * 8, distance.abs()
        far = 4 + (torch.log(n.float().clamp(min=1) / 4) / math.log(64 / 4) * 4).long()
        bucket = sign + torch.where(n < 4, n, far.clamp(max=7))
        return torch.softmax(q @ k.mT + self.table(bucket).permute(2, 0, 1)[None], -1)


@program
def t5_relative_positions() -> Built:
    return inference(RelativeBias()), tuple(torch.randn(2, HEADS, LENGTH, 8) for _ in range(2))


@program
def bert_layer() -> Built:
    layer = nn.TransformerEncoderLayer(D, HEADS, 64, activation="gelu", batch_first=True)
    return inference(layer), (states(),)


@program
def encoder_with_padding_mask() -> Built:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, HEADS, 64, batch_first=True), 2)
    encoder.train()
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    encoder.requires_grad_(False)
    return encoder, (states(), None, torch.arange(LENGTH)[None, :] >= torch.tensor([[LENGTH], [7]]))


@program
def decoder_layer_with_memory() -> Built:
    layer = inference(nn.TransformerDecoderLayer(D, HEADS, 64, batch_first=True))
    return layer, (states(), torch.randn(2, 7, D))


@program
def multi_head_attention_with_weights() -> Built:
    module = inference(nn.MultiheadAttention(D, HEADS, batch_first=True))
    return (lambda q, k: module(q, k, k)), (states(), torch.randn(2, 5, D))


class TopTwoExperts(nn.Module):
    """Every expert sees every token; the two best count."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(D, experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU() for _ in range(experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.view(-1, D)
        logits = self.router(flat)
        weights, chosen = torch.topk(torch.softmax(logits, -1), 2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        result = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            share = (weights * (chosen == i)).sum(-1, keepdim=True)
            result = result + share * expert(flat)
        load = F.one_hot(chosen[:, 0], len(self.experts)).float().mean(0)
        return result.view_as(x), (load * torch.softmax(logits, -1).mean(0)).sum() * len(self.experts)


@program
def mixture_of_experts() -> Built:
    return inference(TopTwoExperts()), (states(),)


@program
def experts_as_batched_matmul() -> Built:
    w1, w2 = torch.randn(4, D, 48) * 0.1, torch.randn(4, 48, D) * 0.1

    def run(x: Tensor, router: Tensor) -> Tensor:
        gates = torch.softmax(x @ router, -1)
        hidden = F.gelu(torch.einsum("btd,edh->bteh", x, w1))
        return torch.einsum("bteh,ehd,bte->btd", hidden, w2, gates)

    return run, (states(), torch.randn(D, 4))


@program
def sliding_window_attention() -> Built:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        t = q.shape[-2]
        i, j = torch.arange(t)[:, None], torch.arange(t)[None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(j <= i) & (i - j < 4))

    return run, tuple(torch.randn(1, HEADS, LENGTH, 8) for _ in range(3))


@program
def documents_in_one_sequence() -> Built:
    def run(q: Tensor, k: Tensor, v: Tensor, document: Tensor) -> Tensor:
        same = document[:, :, None] == document[:, None, :]
        mask = same & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])

    document = torch.tensor([[0] * 5 + [1] * 7, [0] * 3 + [1] * 4 + [2] * 5])
    return run, (*(torch.randn(2, HEADS, LENGTH, 8) for _ in range(3)), document)


class CachedStep(nn.Module):
    """One token against a cache of keys and values that the step extends in place."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.register_buffer("keys", torch.randn(2, HEADS, 16, 8))
        self.register_buffer("values", torch.randn(2, HEADS, 16, 8))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        q, k, v = (y.view(2, 1, HEADS, 8).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        self.keys[:, :, position] = k
        self.values[:, :, position] = v
        mask = (torch.arange(16) <= position)[None]
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask).transpose(1, 2).flatten(2)


@program
def decoding_step_with_cache() -> Built:
    return inference(CachedStep()), (torch.randn(2, 1, D), torch.tensor([5]))


@program
def linear_attention() -> Built:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("bhtd,bhte->bhde", k, v)
        return torch.einsum("bhtd,bhde->bhte", q, state) / torch.einsum("bhtd,bhd->bht", q, k.sum(2)).unsqueeze(-1)

    return run, tuple(torch.randn(2, HEADS, LENGTH, 8) for _ in range(3))


@program
def retention() -> Built:
    decay = 1 - 2.0 ** (-5 - torch.arange(HEADS).float())

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        t = torch.arange(q.shape[2])
        distance = t[:, None] - t[None, :]
        mask = torch.where(distance >= 0, decay[:, None, None] ** distance.clamp(min=0), 0.0)
        return F.group_norm(((q @ k.mT) * mask @ v).transpose(1, 2).reshape(-1, HEADS * 8), HEADS)

    return run, tuple(torch.randn(2, HEADS, LENGTH, 8) for _ in range(3))


@program
def latent_attention() -> Built:
    down, up_k, up_v = nn.Linear(D, 8), nn.Linear(8, D), nn.Linear(8, D)
    query = nn.Linear(D, D)

    def run(x: Tensor) -> Tensor:
        latent = down(x)
        q, k, v = (y.view(2, LENGTH, HEADS, -1).transpose(1, 2) for y in (query(x), up_k(latent), up_v(latent)))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    for m in (down, up_k, up_v, query):
        m.requires_grad_(False)
    return run, (states(),)


class ParallelBlock(nn.Module):
    """Attention and MLP of one norm, as in GPT-J and PaLM."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = nn.LayerNorm(D), CausalSelfAttention(), gelu_mlp(approximate="none")

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y) + self.mlp(y)


@program
def parallel_attention_and_mlp() -> Built:
    return inference(ParallelBlock()), (states(),)


class LoRA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(D, D)
        self.a, self.b = nn.Parameter(torch.randn(4, D) * 0.1), nn.Parameter(torch.randn(D, 4) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * (16 / 4)


@program
def low_rank_adapter() -> Built:
    return inference(LoRA()), (states(),)


@program
def int8_weights_by_group() -> Built:
    weight, scale = torch.randint(-128, 128, (D, D), dtype=torch.int8), torch.rand(D, D // 8) * 0.01

    def run(x: Tensor) -> Tensor:
        full = (weight.float().view(D, -1, 8) * scale[:, :, None]).view(D, D)
        return x @ full.t()

    return run, (states(),)


@program
def top_p_filter() -> Built:
    def run(logits: Tensor) -> Tensor:
        ordered, index = torch.sort(logits, descending=True)
        cumulative = torch.softmax(ordered, -1).cumsum(-1)
        remove = cumulative - torch.softmax(ordered, -1) > 0.9
        return logits.masked_fill(remove.scatter(1, index, remove), float("-inf"))

    return run, (torch.randn(2, VOCABULARY),)


@program
def top_k_filter_and_penalty() -> Built:
    def run(logits: Tensor, seen: Tensor) -> Tensor:
        score = torch.gather(logits, 1, seen)
        score = torch.where(score < 0, score * 1.2, score / 1.2)
        logits = logits.scatter(1, seen, score) / 0.8
        least = torch.topk(logits, 10).values[:, -1, None]
        return torch.softmax(logits.masked_fill(logits < least, float("-inf")), -1)

    return run, (torch.randn(2, VOCABULARY), torch.stack([torch.randperm(VOCABULARY)[:6] for _ in range(2)]))


@program
def beam_search_step() -> Built:
    def run(scores: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = scores[:, :, None] + F.log_softmax(logits, -1)
        best, index = total.flatten(1).topk(3, dim=1)
        return best, index // logits.shape[-1], index % logits.shape[-1]

    return run, (torch.randn(2, 3), torch.randn(2, 3, VOCABULARY))


@program
def sinusoidal_positions() -> Built:
    def run(x: Tensor) -> Tensor:
        position = torch.arange(x.shape[1]).unsqueeze(1)
        rates = torch.exp(torch.arange(0, D, 2) * (-math.log(10000.0) / D))
        table = torch.zeros(x.shape[1], D)
        table[:, 0::2] = torch.sin(position * rates)
        table[:, 1::2] = torch.cos(position * rates)
        return x + table

    return run, (states(),)


@program
def tokens_of_most_weight() -> Built:
    """A router takes half of the tokens through the block."""
    block, router = inference(gelu_mlp()), torch.randn(D)

    def run(x: Tensor) -> Tensor:
        weight = x @ router
        index = weight.topk(LENGTH // 2, dim=1).indices.sort(1).values
        chosen = x.gather(1, index[:, :, None].expand(-1, -1, D))
        update = block(chosen) * torch.sigmoid(weight.gather(1, index))[:, :, None]
        return x.scatter_add(1, index[:, :, None].expand(-1, -1, D), update)

    return run, (states(),)
