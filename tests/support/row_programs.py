"""Functions of rows, such as softmax, lowered with a chosen tile length."""

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
    """A program at the loop, tile and kernel level."""

    loops: ModuleOp
    tiles: ModuleOp
    kernel: ModuleOp


def rows(count: int, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns random rows.

    Args:
        count: number of rows.
        length: elements of a row.
        dtype: element type.
    """
    return (torch.randn(count, length, generator=torch.Generator().manual_seed(length)) + 1).to(dtype)


def lowered(name: str, x: torch.Tensor, length: int, target: str = "sm_90a", **decisions: object) -> Lowered:
    """Lowers a function of rows with tiles of `length` elements.

    Args:
        name: key of `FUNCTIONS`.
        x: the rows.
        length: elements of a tile.
        target: target name.
        **decisions: fields of the schedule to change.
    """
    ctx, loops = make_context(), Compilation(capture(FUNCTIONS[name], (x,)).module, target).at("loop").clone()
    for nest in [op for op in loops.walk() if isinstance(op, loop.NestOp)]:
        schedule = plan(nest, get_target(target))
        free, cluster_size = len(schedule.data.block), decisions.get("cluster", 1)
        fits_one_tile = isinstance(cluster_size, int) and length * cluster_size >= x.shape[-1]
        shape = {
            "block": [1, length][:free],
            "chunk": [length] * len(schedule.data.chunk),
            "serial": [] if free == 1 or fits_one_tile else [1],
            "cluster": 1,
            "cache_rows": "registers",
            "warps": 2,
        }
        nest.attributes["schedule"] = schedule.changed(**{**shape, **decisions})
    tiles = loops.clone()
    run_passes(ctx, tiles, parse_passes(f"loop-to-tile{{target={target}}}"))
    kernel = tiles.clone()
    run_passes(ctx, kernel, parse_passes(f"tile-to-kernel{{target={target}}}"))
    return Lowered(loops, tiles, kernel)


def is_close(result: np.ndarray, x: torch.Tensor, name: str) -> bool:
    """Returns true if a result equals PyTorch's up to rounding.

    Args:
        result: the result.
        x: the rows.
        name: key of `FUNCTIONS`.
    """
    expected = FUNCTIONS[name](x).float().numpy()
    tolerance = 2.0**-7 if x.dtype == torch.bfloat16 else 1e-5
    return bool(np.allclose(np.asarray(result, np.float32), expected, rtol=tolerance, atol=tolerance / 8))
