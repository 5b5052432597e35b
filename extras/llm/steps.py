"""Capturing and compiling the two steps of a language model with a key-value cache: prefill and decode.

The caches are tensors of a fixed length. A step takes them as arguments, and returns them with the new tokens. The
position of the tokens is a tensor as well, so that one captured program is valid for all positions. A step is a
functional program: it changes no argument in place.
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
from ..artifact.programs import ProgramToSave, save
from ..artifact.safetensors import names_in_checkpoints
from .models import DEFAULT_CONTEXT, DEFAULT_PREFILL, config_dtype, quiet


class FixedCacheLayer(CacheLayerMixin):
    """Cache of one layer, for transformers.

    The cache is as long as the longest sequence. Sliding windows of attention are implemented by the mask.

    Args:
        keys: keys of shape (batch, heads, length, size).
        values: values of the same shape.
        positions: consecutive positions of the new tokens, int64.
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
        """Does nothing, because the tensors are arguments of the step."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes new keys and values to the cache. Returns all keys and values; the mask excludes unused positions."""
        self.keys = _written(self.keys, key_states, self.positions[0])
        self.values = _written(self.values, value_states, self.positions[0])
        return self.keys, self.values

    def get_seq_length(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns the number of earlier tokens, as a tensor, so that it is not a constant of the captured program."""
        return self.positions[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the length and the first position of the keys that attention reads."""
        return self.keys.shape[2], 0

    def get_max_length(self) -> int:
        """The number of tokens that the cache holds."""
        return self.keys.shape[2]


def _written(cache: torch.Tensor, new: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Returns `cache` with `new` at the positions from `start` on.

    Each position of the cache selects its new token, if any, or its old value. Unlike a scatter, this is a pointwise
    kernel with a load of `new`.
    """
    count = new.shape[2]
    offset = torch.arange(cache.shape[2], device=cache.device) - start
    inside = (offset >= 0) & (offset < count)
    shifted = new if count == 1 else new.index_select(2, offset.clamp(0, count - 1))
    return torch.where(inside[:, None], shifted, cache)


class Step(nn.Module):
    """Module of one step of a language model with key-value caches.

    Args:
        model: the language model.
    """

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
        """Runs the step.

        Tokens after `last` are padding. Later steps overwrite their entries in the caches before attention reads them.

        Args:
            tokens: tokens, of shape (1, S).
            start: position of the first token, of shape (1,).
            last: index of the token whose logits are returned, of shape (1,).
            keys: key cache of each layer.
            values: value cache of each layer.

        Returns:
            The logits of shape (1, V), and the key and value caches with the new tokens.
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
    """Shapes of the caches of a model.

    Attributes:
        shapes: (1, heads, context, size) for each layer; keys and values have the same shape.
        dtype: type of the elements.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @property
    def context(self) -> int:
        """The number of tokens that the cache holds."""
        return self.shapes[0][2]

    def make(self, device: str = "cpu") -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Returns empty caches: keys and values, one tensor for each layer."""

        def zeros() -> list[torch.Tensor]:
            return [torch.zeros(s, dtype=self.dtype, device=device) for s in self.shapes]

        return zeros(), zeros()


def cache_shape(config: Any, dtype: torch.dtype, context: int | None = None) -> CacheShape:
    """Returns the shapes of the caches of a model.

    Args:
        config: configuration of the model.
        dtype: type of the caches.
        context: number of tokens, limited by the model's maximum; default: `DEFAULT_CONTEXT`.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None) or DEFAULT_CONTEXT
    context = min(context or DEFAULT_CONTEXT, longest)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return CacheShape(((1, heads, context, size),) * text.num_hidden_layers, dtype)


@dataclass(frozen=True)
class ModelPlan:
    """Sizes with which a model is compiled.

    Attributes:
        caches: shapes of the caches.
        length: number of tokens of a prefill step.
        vocabulary: number of tokens that the model knows.
    """

    caches: CacheShape
    length: int
    vocabulary: int

    def written(self) -> dict[str, object]:
        """Returns the plan as JSON, for `read`."""
        shapes = [list(s) for s in self.caches.shapes]
        dtype = dtype_name(self.caches.dtype)
        return {"shapes": shapes, "dtype": dtype, "length": self.length, "vocabulary": self.vocabulary}

    @staticmethod
    def read(value: Any) -> ModelPlan | None:
        """Returns the plan from JSON of `written`, or None for other JSON."""
        try:
            shapes = tuple(tuple(int(n) for n in shape) for shape in value["shapes"])
            caches = CacheShape(shapes, dtype_named(value["dtype"]))
            return ModelPlan(caches, int(value["length"]), int(value["vocabulary"]))
        except (KeyError, TypeError, ValueError, CompileError):
            return None


def plan_model(model: nn.Module, context: int | None = None, prefill: int = DEFAULT_PREFILL) -> ModelPlan:
    """Returns the plan of a model.

    Args:
        model: the model.
        context: number of tokens that the caches hold, limited by the model's maximum; default: `DEFAULT_CONTEXT`.
        prefill: number of tokens of a prefill step.
    """
    config: Any = model.config
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), config_dtype(config))
    caches = cache_shape(config, dtype, context)
    return ModelPlan(caches, min(prefill, caches.context), int(config.get_text_config().vocab_size))


def capture_step(model: nn.Module, caches: CacheShape, length: int) -> CapturedProgram:
    """Captures one step of a model. Each cache that it returns updates the argument of the same cache.

    Args:
        model: the model.
        caches: shapes of the caches.
        length: number of tokens of the step: 1 for decode, more for prefill.

    Raises:
        CompileError: if the step cannot be captured.
    """
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
    """Compiled steps of a model.

    Attributes:
        model: the model.
        plan: its sizes.
        captured: captured program of each step, by its name `prefill` or `decode`.
        compilations: compilation of each step.
    """

    model: nn.Module
    plan: ModelPlan
    captured: dict[str, CapturedProgram]
    compilations: dict[str, Compilation]

    def save(self, path: str | Path) -> None:
        """Writes an artifact. Parameters without values are bound when it is loaded.

        Raises ArtifactError if the artifact cannot be written.
        """
        names = {f"model.{n}": same for n, same in names_in_checkpoints(self.model).items()}
        programs = {
            phase: ProgramToSave(self.captured[phase], compilation, names)
            for phase, compilation in self.compilations.items()
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
        context: number of tokens that the caches hold.
        prefill: number of tokens of a prefill step.
        phases: the steps, `prefill` and `decode`.
        facts: attributes to write into each program, such as `{"version": "0.1.0"}`.
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
    """Returns statistics of each step: numbers of kernels and launches, launches of each kind of layer, and bytes."""
    from ...backend.host.launch_plan import make_plan
    from ...frontend.kernels import kernels_of

    descriptions: list[dict[str, Any]] = []
    for phase, compilation in compiled.compilations.items():
        plan = make_plan(compilation.at("kernel"))
        descriptions.append(
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
    return descriptions


def launches_of_layers(compilation: Compilation) -> list[int]:
    """Returns the number of launches of each function of a program except `main`: one for each kind of layer."""
    from xdsl.dialects.func import FuncOp

    from ...dialects.kernel import LaunchOp

    module = compilation.at("tile").clone()
    passes = [p for p in parse_passes("tile-to-kernel") if not isinstance(p, InlineCallsPass)]
    run_passes(compilation.ctx, module, passes)
    layers = [f for f in module.ops if isinstance(f, FuncOp) and f.sym_name.data != "main"]
    return [sum(isinstance(op, LaunchOp) for op in f.walk()) for f in layers]
