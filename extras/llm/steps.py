"""The steps of a language model with a cache, reading a prompt and a single token: captured, compiled, and saved.

The key-value cache is tensors of a fixed length that go in, and come out with new tokens in them. The position is a
tensor as well, so one captured program serves every position. Nothing is changed in place: the results of one step are
arguments of the next, and the graph that PyTorch exports is functional as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, CacheLayerMixin

from ...errors import CaptureError, CompileError
from ...frontend.capture.arrays import dtype_name, dtype_named
from ...frontend.capture.captured_program import CapturedProgram
from ...frontend.capture.export import capture
from ...frontend.compilation import Compilation, compile_captured
from ...passes.host.inline_calls import InlineCallsPass
from ...passes.pass_manager import run_passes
from ...passes.pipelines import parse_passes
from ...progress import steps
from ...target.attribute import stamp
from ..artifact.programs import ToSave, save
from ..artifact.safetensors import names_in_checkpoints
from .models import DEFAULT_CONTEXT, DEFAULT_PREFILL, config_dtype, quiet


class FixedCacheLayer(CacheLayerMixin):
    """Keys and values (batch, heads, length, size) of one layer; new ones are written at `positions`.

    `positions` are the places of the new tokens, int64, one after another. A window of attention is left to the mask:
    the cache is as long as the longest sequence.
    """

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor) -> None:
        super().__init__()
        self.keys: torch.Tensor
        self.values: torch.Tensor
        self.keys, self.values, self.positions = keys, values, positions
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Does nothing: the tensors are arguments."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The cache with the new keys and values, which it is from now on; the mask hides what is not there yet."""
        self.keys = _written(self.keys, key_states, self.positions[0])
        self.values = _written(self.values, value_states, self.positions[0])
        return self.keys, self.values

    def get_seq_length(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """How many tokens came before, as a tensor, so that it is no constant of the program."""
        return self.positions[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and first position of what the queries may look at."""
        return self.keys.shape[2], 0

    def get_max_length(self) -> int:
        """How many tokens fit."""
        return self.keys.shape[2]


def _written(cache: torch.Tensor, new: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """`cache` with `new` from position `start` on.

    Every place of the cache asks which new token belongs there, if any: a kernel that reads, where a scatter would have
    to search.
    """
    count = new.shape[2]
    offset = torch.arange(cache.shape[2], device=cache.device) - start
    inside = (offset >= 0) & (offset < count)
    placed = new if count == 1 else new.index_select(2, offset.clamp(0, count - 1))
    return torch.where(inside[:, None], placed, cache)


class Step(nn.Module):
    """One step of a language model with a cache: tokens, their position and the caches in, logits and caches out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: torch.Tensor,
        start: torch.Tensor,
        last: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """`tokens` (1, S) begin at position `start` (1,); the logits (1, V) are those after token `last` (1,) of them.

        `keys` and `values` are the caches of the layers; they come back with the new tokens in them. Tokens behind
        `last` may be anything: what they leave in the caches is overwritten before it is looked at.
        """
        positions = start + torch.arange(tokens.shape[1], device=start.device)
        layers = [FixedCacheLayer(k, v, positions) for k, v in zip(keys, values, strict=True)]
        out = self.model(
            input_ids=tokens,
            position_ids=positions.unsqueeze(0),
            past_key_values=Cache(layers=[*layers]),
            logits_to_keep=last,
            use_cache=True,
        )
        return out.logits[:, 0], [layer.keys for layer in layers], [layer.values for layer in layers]


@dataclass(frozen=True)
class CacheShape:
    """The caches of a model: one shape for each layer, (1, heads, context, size), for keys and for values."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @property
    def context(self) -> int:
        """How many tokens fit."""
        return self.shapes[0][2]

    def make(self, device: str = "cpu") -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Empty caches: keys and values."""

        def zeros() -> list[torch.Tensor]:
            return [torch.zeros(s, dtype=self.dtype, device=device) for s in self.shapes]

        return zeros(), zeros()


def cache_shape(config: Any, dtype: torch.dtype, context: int | None = None) -> CacheShape:
    """The caches that a model needs for `context` tokens."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None) or DEFAULT_CONTEXT
    context = min(context or DEFAULT_CONTEXT, longest)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return CacheShape(((1, heads, context, size),) * text.num_hidden_layers, dtype)


@dataclass(frozen=True)
class ModelPlan:
    """How a model is compiled: its caches, the tokens of a prefill step, and the size of its vocabulary."""

    caches: CacheShape
    length: int
    vocabulary: int

    def written(self) -> dict[str, object]:
        """The plan as JSON, for `read`."""
        shapes = [list(s) for s in self.caches.shapes]
        dtype = dtype_name(self.caches.dtype)
        return {"shapes": shapes, "dtype": dtype, "length": self.length, "vocabulary": self.vocabulary}

    @staticmethod
    def read(value: Any) -> ModelPlan | None:
        """The plan that was written, None for something else."""
        try:
            shapes = tuple(tuple(int(n) for n in shape) for shape in value["shapes"])
            caches = CacheShape(shapes, dtype_named(value["dtype"]))
            return ModelPlan(caches, int(value["length"]), int(value["vocabulary"]))
        except (KeyError, TypeError, ValueError, CompileError):
            return None


def plan_model(model: nn.Module, context: int | None = None, prefill: int = DEFAULT_PREFILL) -> ModelPlan:
    """How to compile `model` for `context` tokens in all, and `prefill` tokens of a prompt at a time."""
    config: Any = model.config
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), config_dtype(config))
    caches = cache_shape(config, dtype, context)
    return ModelPlan(caches, min(prefill, caches.context), int(config.get_text_config().vocab_size))


def capture_step(model: nn.Module, caches: CacheShape, length: int) -> CapturedProgram:
    """Captures one step of `model` for `length` tokens at a time: 1 to decode, more to read a prompt. Each cache among
    its results replaces the one among its arguments. Raises CompileError."""
    if not 0 < length <= caches.context:
        raise CaptureError(f"a step of {length} tokens does not fit a cache of {caches.context}")
    device = next(model.parameters()).device.type
    keys, values = caches.make(device)
    tokens = torch.zeros((1, length), dtype=torch.int64, device=device)
    start, last = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
    with quiet():
        captured = capture(Step(model), (tokens, start, last, keys, values))
    # The caches are the last leaves of the arguments and of the results, in the same order.
    count, leaves = len(keys) + len(values), captured.in_spec.num_leaves
    arguments = {b.leaf: i for i, b in enumerate(captured.bindings) if b.kind == "input"}
    pairs = zip(captured.outputs[-count:], range(leaves - count, leaves), strict=True)
    return captured.updating([(o.index, arguments[leaf]) for o, leaf in pairs if o.kind == "result"])


@dataclass
class CompiledModel:
    """The steps of a model, `prefill` and `decode` or one of them, on their way down."""

    model: nn.Module
    plan: ModelPlan
    captured: dict[str, CapturedProgram]
    compilations: dict[str, Compilation]

    def save(self, path: str | Path) -> None:
        """Write the artifact. Parameters without values are left to a checkpoint. Raises ArtifactError."""
        names = {f"model.{n}": same for n, same in names_in_checkpoints(self.model).items()}
        programs = {
            phase: ToSave(self.captured[phase], compilation, names) for phase, compilation in self.compilations.items()
        }
        save(path, programs, {"model": self.plan.written()})


def compile_model(
    model: nn.Module,
    *,
    context: int | None = None,
    prefill: int = DEFAULT_PREFILL,
    phases: Sequence[str] = ("prefill", "decode"),
    facts: Mapping[str, str] | None = None,
    prepack_weights: bool = True,
    **options: Any,
) -> CompiledModel:
    """Compiles the steps of a causal language model, whose parameters may be on the meta device.

    Args:
        model: the model.
        context: tokens that the cache holds.
        prefill: tokens of a prompt that are read in one step.
        phases: the steps, `prefill` and `decode`.
        facts: notes for the texts of the programs.
        prepack_weights: as for `compile`.
        options: options of `compile_captured`.

    Raises:
        CompileError: if a step cannot be compiled.
    """
    plan = plan_model(model, context, prefill)
    captured: dict[str, CapturedProgram] = {}
    compilations: dict[str, Compilation] = {}
    for phase in phases:
        with steps(f"capturing {phase}"):
            captured[phase] = capture_step(model, plan.caches, plan.length if phase == "prefill" else 1)
        stamp(captured[phase].module, facts or {})
        compilations[phase] = compile_captured(captured[phase], prepack_weights=prepack_weights, **options)
        compilations[phase].at("kernel")
    return CompiledModel(model, plan, captured, compilations)


def describe(compiled: CompiledModel) -> list[dict[str, Any]]:
    """Of every step its kernels and launches, and the launches of every kind of layer."""
    from ...backend.host.launch_plan import make_plan
    from ...frontend.profile import kernels_of

    found: list[dict[str, Any]] = []
    for phase, compilation in compiled.compilations.items():
        plan = make_plan(compilation.at("kernel"))
        found.append(
            {
                "phase": phase,
                "tokens": compiled.plan.length if phase == "prefill" else 1,
                "context": compiled.plan.caches.context,
                "kernels": len({x.kernel for x in plan.launches}),
                "launches": len(plan.launches),
                "launches_per_layer": launches_of_layers(compilation),
                "arena_bytes": plan.call_bytes,
                "constant_bytes": plan.constant_bytes,
                "moved_bytes": sum(k.launches * k.work.bytes for k in kernels_of(compilation)),
                "pass_seconds": sum(s for _, s in compilation.seconds),
            }
        )
    return found


def launches_of_layers(compilation: Compilation) -> list[int]:
    """The launches of every kind of repeated part of a program."""
    from xdsl.dialects.func import FuncOp

    from ...dialects.kernel import LaunchOp

    module = compilation.at("tile").clone()
    passes = [p for p in parse_passes("tile-to-kernel") if not isinstance(p, InlineCallsPass)]
    run_passes(compilation.ctx, module, passes)
    layers = [f for f in module.ops if isinstance(f, FuncOp) and f.sym_name.data != "main"]
    return [sum(isinstance(op, LaunchOp) for op in f.walk()) for f in layers]
