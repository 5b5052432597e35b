"""Bugs in the IR of the loop and tile levels, planted in its text."""

from __future__ import annotations

from .editing import in_ir_text

NESTS = [
    in_ir_text("a nest that is one short", "transpose", "loop", r"in \[45, 33\]", "in [45, 32]"),
    in_ir_text("a sum that is one short", "layer_norm", "loop", r"in \[100\] -> f32", "in [99] -> f32"),
    in_ir_text("a sum that is one too long", "layer_norm", "loop", r"in \[100\] -> f32", "in [101] -> f32", 1),
    in_ir_text("a sum as maximum", "rms_norm", "loop", r"loop\.reduce add", "loop.reduce max"),
    in_ir_text("a maximum as minimum", "softmax", "loop", r"loop\.reduce max", "loop.reduce min"),
    in_ir_text("a factor's coordinates swapped", "relu matmul", "loop", r"\[%k, %j\]", "[%j, %k]"),
    in_ir_text("another row", "attention", "loop", r"%j, %k_1, %k_2\]", "%j, %k_2, %k_1]"),
    in_ir_text("another head", "attention", "loop", r"\[0, %j, ", "[0, 0, ", 1),
    in_ir_text("an offset of 2", "padding", "loop", r"(%i|%j) - 1\b", r"\1 - 2"),
    in_ir_text("a domain that is too wide", "padding", "loop", r"0 <= (\S[^<]*) < 13\b", r"-1 <= \1 < 13"),
    in_ir_text("a causal mask with lt", "attention", "loop", r"payload\.cmp le", "payload.cmp lt", 1),
    in_ir_text(
        "a rescaling the other way",
        "chunked attention",
        "loop",
        r"arith\.subf %(\d+), %(\d+) : f32(?=\n.* = arith\.mulf .* fastmath<reassoc> : f32\n)",
        r"arith.subf %\2, %\1 : f32",
    ),
    in_ir_text(
        "a rescaling that forgets a stage",
        "chunked attention",
        "loop",
        r"loop\.yield %(\d+), %(\d+), %(\d+) : f32, f32, f32",
        r"loop.yield %\1, %\2, %\2 : f32, f32, f32",
        1,
    ),
]

TILES = [
    in_ir_text("a row block that starts elsewhere", "relu matmul", "tile", r"(%i\w*) \* 16", r"\1 * 15"),
    in_ir_text("a domain that is one too wide", "relu matmul", "tile", r"< 19\b", "< 20"),
    in_ir_text("a domain that is one short", "transpose", "tile", r"< 33\b", "< 32"),
    in_ir_text(
        "a store without its domain",
        "layer_norm",
        "tile",
        r"(tile\.store [^\n]*?) where [^:\n]*(?= : )",
        r"\1",
    ),
    in_ir_text("a sum as maximum", "rms_norm", "tile", r"tile\.reduce add", "tile.reduce max"),
    in_ir_text("a reduction of the rows", "attention", "tile", r"over \[1\]", "over [0]"),
    in_ir_text("a broadcast along the other dimension", "attention", "tile", r"along \[0\]", "along [1]"),
    in_ir_text(
        "padding of 1",
        "layer_norm",
        "tile",
        r"payload\.constant 0\.000000e\+00 : f32",
        "payload.constant 1.000000e+00 : f32",
    ),
    in_ir_text("a loop that is one short", "chunked softmax", "tile", r"to %c2 step", "to %c1 step"),
    in_ir_text(
        "an accumulator that starts anew",
        "chunked matmul",
        "tile",
        r"tile\.dot (%\d+), (%\d+), (%\d+)",
        r"tile.dot \1, \2, %0",
    ),
    in_ir_text("a grid of one block less", "softmax", "tile", r"in \[5\] warps", "in [4] warps"),
    in_ir_text("a layout with a basis twice", "rms_norm", "tile", r"\[512\], \[1024\]", "[512], [512]", None),
    in_ir_text(
        "a layout that leaves half out", "softmax", "tile", r"\[\[1\], \[2\], \[128\]\]", "[[1], [2], [0]]", None
    ),
    in_ir_text(
        "a shared layout that is no bijection",
        "relu matmul",
        "tile",
        r"#tile\.shared<offset = \[\[1, 0\], \[2, 0\]",
        "#tile.shared<offset = [[1, 0], [1, 0]",
        None,
    ),
    in_ir_text(
        "operands of a launch swapped",
        "layer_norm",
        "tile",
        r"tile\.launch @k0\(%x, %weight, %bias\)|tile\.launch @k0\(%x, %w, %b\)",
        "tile.launch @k0(%x, %b, %w)",
    ),
    in_ir_text(
        "an index from 1",
        "layer_norm",
        "tile",
        r"tile\.affine d0(?= : )",
        "tile.affine d0 + 1",
    ),
    in_ir_text("more warps than the layout has", "rms_norm", "tile", r"warps 4", "warps 8"),
    in_ir_text(
        "a frame that is not repaired",
        "chunked softmax",
        "tile",
        r"payload\.select (%\d+), (%\d+), (%\d+) : f32",
        r"payload.select \1, \3, \3 : f32",
    ),
]

TILE_MUTANTS = [*NESTS, *TILES]
