"""Kernels that convert a tile from one layout to another by warp shuffles."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import ModuleOp

from deplodock.dialects import make_context
from deplodock.dialects.kernel.mma import MMA_ATOMS
from deplodock.dialects.layouts import format_bases
from deplodock.dialects.layouts.linear import Linear
from deplodock.dialects.layouts.mma import accumulator, fragment
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

TF32 = next(atom for atom in MMA_ATOMS if atom.ptx_type == "tf32")


PROGRAM = """
tile.kernel @k0(%x: memref<{s}x{t}>, %y: memref<{s}x{t}>) blocks () in [] warps {warps} {{
  %a = tile.load %x[d0, d1] : memref<{s}x{t}> -> tensor<{s}x{t}, {a}>
  %b = tile.convert_layout %a via "{via}" : tensor<{s}x{t}, {a}> -> tensor<{s}x{t}, {b}>
  tile.store %b, %y[d0, d1] : tensor<{s}x{t}, {b}>, memref<{s}x{t}>
}}
func.func @main(%x: tensor<{s}x{t}>) -> tensor<{s}x{t}> {{
  %y = tile.launch @k0(%x) : (tensor<{s}x{t}>) -> tensor<{s}x{t}>
  func.return %y : tensor<{s}x{t}>
}}
"""


DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
    "i64": np.int64,
    "i1": np.bool_,
}


ACC = accumulator((32, 64), 2, rows_first=True)


ROWS = Linear(
    ACC.shape, ((0, 1), (0, 2), (0, 4), (4, 0), (8, 0)), ((0, 8), (0, 16), (0, 32), (1, 0), (2, 0)), ((16, 0),)
)


MIXED = Linear(ROWS.shape, ((0, 1), (2, 2), (1, 4), (4, 0), (8, 8)), (*ROWS.lane[:3], (1, 1), (2, 0)), ((16, 0),))


REPEATED = Linear((2, 16), ((0, 8), (0, 0)), ((0, 1), (0, 0), (0, 2), (1, 4), (0, 4)), ())


CASES = {
    **{f"accumulators to rows, {t}": (ACC, ROWS, t) for t in DTYPES},
    "rows to accumulators, f16": (ROWS, ACC, "f16"),
    "a fragment of tf32": (ACC, fragment(ACC, 0, 64, TF32), "f32"),
    "mixed bases": (MIXED, ROWS, "f32"),
    "other lanes": (MIXED, Linear(MIXED.shape, MIXED.reg[::-1], MIXED.lane[::-1], MIXED.warp), "bf16"),
    "held several times": (REPEATED, Linear((2, 16), ((1, 0), (0, 8)), REPEATED.lane[::-1], ()), "bf16"),
}


def text(layout: Linear) -> str:
    """Returns the IR text of a layout."""
    reg, lane, warp = (format_bases(b) for b in (layout.reg, layout.lane, layout.warp))
    return f"#tile.layout<reg = {reg}, lane = {lane}, warp = {warp}>"


def lowered(name: str, via: str = "shuffles") -> ModuleOp:
    """Returns a module whose kernel converts a tile as an entry of `CASES` says.

    Args:
        name: key of `CASES`.
        via: method of the conversion, `shuffles` or `shared`.
    """
    source, target, element = CASES[name]
    shape = "x".join(map(str, source.shape))
    program = PROGRAM.format(s=shape, t=element, a=text(source), b=text(target), warps=source.warps, via=via)
    module = parse_module(make_context(), program, "exchange.mlir")
    passes = "convert-tile-to-kernel,cse,dce,kernel-allocate-shared,kernel-insert-barriers"
    run_passes(make_context(), module, parse_passes(passes))
    return module
