"""Programs of rows with a schedule of our choice, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp

from deplodock.dialects import loop, make_context
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.planning.plan_schedules import plan
from deplodock.target.attribute import get_target

Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) * 7, reduction="none"),
    "argmax": lambda x: x.argmax(-1),
    "variance": lambda x: x.var(-1),
}


@dataclass(frozen=True)
class Lowered:
    """One program at three levels."""

    loops: ModuleOp
    tiles: ModuleOp
    kernel: ModuleOp


def rows(count: int, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random rows."""
    return (torch.randn(count, length, generator=torch.Generator().manual_seed(length)) + 1).to(dtype)


def lowered(name: str, x: torch.Tensor, length: int, target: str = "sm_90a", **decisions: object) -> Lowered:
    """A function of rows, in tiles of `length` elements."""
    ctx, loops = make_context(), Compilation(capture(FUNCTIONS[name], (x,)).module, target).at("loop").clone()
    for nest in [op for op in loops.walk() if isinstance(op, loop.NestOp)]:
        chosen = plan(nest, get_target(target))
        free, parts = len(chosen.data.block), decisions.get("cluster", 1)
        whole = isinstance(parts, int) and length * parts >= x.shape[-1]
        shape = {
            "block": [1, length][:free],
            "chunk": [length] * len(chosen.data.chunk),
            "serial": [] if free == 1 or whole else [1],
            "cluster": 1,
            "cache_rows": "registers",
            "warps": 2,
        }
        nest.attributes["schedule"] = chosen.changed(**{**shape, **decisions})
    tiles = loops.clone()
    run_passes(ctx, tiles, parse_passes(f"loop-to-tile{{target={target}}}"))
    kernel = tiles.clone()
    run_passes(ctx, kernel, parse_passes(f"tile-to-kernel{{target={target}}}"))
    return Lowered(loops, tiles, kernel)


def is_close(got: np.ndarray, x: torch.Tensor, name: str) -> bool:
    """Whether `got` is what PyTorch gives, up to rounding."""
    wanted = FUNCTIONS[name](x).float().numpy()
    tolerance = 2.0**-7 if x.dtype == torch.bfloat16 else 1e-5
    return bool(np.allclose(np.asarray(got, np.float32), wanted, rtol=tolerance, atol=tolerance / 8))
