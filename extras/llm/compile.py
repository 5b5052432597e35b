"""A whole language model: both of its steps captured and compiled, and written down as one artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ...dialects.support.printing import stamp
from ...frontend.capture.captured_program import CapturedProgram
from ...frontend.compilation import Compilation, compile_captured
from ...passes.host.inline_calls import InlineCallsPass
from ...passes.pass_manager import run_passes
from ...passes.pipelines import parse_passes
from ...progress import steps
from ..artifact.programs import ToSave, save
from ..artifact.safetensors import names_in_checkpoints
from .models import DEFAULT_PREFILL, ModelPlan, capture_step, plan_model


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
    """Compile the steps of a causal language model; its parameters may be on the meta device.

    `context` is how many tokens the cache holds, `prefill` how many of a prompt are read at a time; `facts` are stamped
    on the programs; `options` are those of `compile_captured`. Raises CompileError.
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
