"""Register arrays in printed CUDA are aligned to their widest access, in the emulator and by a check of the text."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.printed_text import unaligned_arrays
from xdsl.dialects.builtin import ModuleOp

import deplodock
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedModule, EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import verify_module

KERNEL = """
kernel.func @k(%x: memref<128xf32>, %y: memref<128xf32>) grid [1] warps 1 {{
  %lane = kernel.id lane
  %zero = payload.constant 0 : index
  %one = payload.constant 1 : index
  %three = payload.constant 3 : index
  %four = payload.constant 4 : index
  %at = arith.muli %lane, %four : index
  %low = payload.cmp lt %lane, %three : index
  %v = kernel.load %x[%at] regs [[1], [2]] : memref<128xf32> -> vector<4xf32>
{body}
}}
func.func @main(%x: memref<128xf32>, %y: memref<128xf32>) {{
  kernel.launch @k(%x, %y) : memref<128xf32>, memref<128xf32>
  func.return
}}
"""
STORE = "kernel.store {}, %y[%at] regs [[1], [2]] vec {} : memref<128xf32>, vector<4xf32>"
LOOP = """
  %s = scf.for %i = %zero to %three step %one iter_args(%a = {start}) -> (vector<4xf32>) {{
    %b = arith.{op} %a, %v : vector<4xf32>
    scf.yield %b : vector<4xf32>
  }}"""
CHOICE = """
  %c = scf.if %low -> (vector<4xf32>) {
    scf.yield %v : vector<4xf32>
  } else {
    %d = arith.addf %v, %v : vector<4xf32>
    scf.yield %d : vector<4xf32>
  }"""
SWAP = """
  %w = arith.mulf %v, %v : vector<4xf32>
  %s, %t = scf.for %i = %zero to %three step %one iter_args(%a = %v, %b = %w) -> (vector<4xf32>, vector<4xf32>) {
    scf.yield %b, %a : vector<4xf32>, vector<4xf32>
  }"""
Z = "  %z = payload.constant 0.0 : vector<4xf32>"

# Where a value that is stored in wide accesses comes from, and how wide.
BODIES = {
    "a load": (STORE.format("%v", 4), 16),
    "a loop from zero": (Z + LOOP.format(start="%z", op="addf") + STORE.format("%s", 4), 16),
    "a loop from a value": (LOOP.format(start="%v", op="addf") + STORE.format("%s", 2), 8),
    "a loop whose start is read again": (
        LOOP.format(start="%v", op="mulf") + "%e = arith.addf %s, %v : vector<4xf32>" + STORE.format("%e", 4),
        16,
    ),
    "a conditional": (CHOICE + STORE.format("%c", 2), 8),
    "a conditional into a loop": (CHOICE + LOOP.format(start="%c", op="addf") + STORE.format("%s", 4), 16),
    "places that change partitions": (SWAP + STORE.format("%t", 4), 16),
    "stored twice": (LOOP.format(start="%v", op="addf") + STORE.format("%s", 2) + STORE.format("%s", 4), 16),
    "stored inside a loop": (
        f"scf.for %i = %zero to %three step %one {{\n{STORE.format('%v', 4)}\n}}",
        16,
    ),
    "picked": (
        LOOP.format(start="%v", op="addf")
        + "%p = kernel.shuffle_registers %s from [3, 2, 1, 0] : vector<4xf32> -> vector<4xf32>"
        + STORE.format("%p", 4),
        16,
    ),
    "narrow": (LOOP.format(start="%v", op="addf") + STORE.format("%s", 1), 0),
}


def module_of(name: str) -> ModuleOp:
    """Returns the module of a kernel with a body of `BODIES`."""
    module = parse_module(make_context(), KERNEL.format(body=BODIES[name][0]), "test.mlir")
    verify_module(module)
    return module


def halved(cuda: str) -> str:
    """Returns CUDA text in which the alignment of each array is halved."""
    return re.sub(r"__align__\((\d+)\)", lambda m: f"__align__({int(m[1]) // 2})", cuda)


@pytest.fixture(scope="module")
def emulated() -> dict[str, EmulatedModule]:
    """Returns the emulated modules of all programs by text, also those with halved alignments."""
    texts = [print_cuda(module_of(name)) for name in BODIES]
    texts += [halved(text) for text in texts]
    return dict(zip(texts, compile_many(texts), strict=True))


@pytest.mark.parametrize("name", BODIES)
def test_arrays_are_aligned_to_their_widest_access(name: str, emulated: dict[str, EmulatedModule]) -> None:
    alignment, module = BODIES[name][1], module_of(name)
    cuda, x = print_cuda(module), np.arange(128, dtype=np.float32)
    assert re.findall(r"__align__\((\d+)\)", cuda) == [str(alignment)] * (alignment > 0), cuda
    assert not list(unaligned_arrays(cuda))
    _, reports = EmulatedProgram(cuda, make_plan(module), emulated[cuda]).run([x], seeds=(0,))
    assert not [str(r) for r in reports]
    planted = halved(cuda)
    assert bool(list(unaligned_arrays(planted))) == (alignment > 0)
    _, reports = EmulatedProgram(planted, make_plan(module), emulated[planted]).run([x], seeds=(0,))
    assert [r.kind for r in reports] == ["misaligned"] * (alignment > 0)


def test_a_convolution_of_something_upsampled() -> None:
    def function(b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.interpolate(b, scale_factor=2), w, padding=1)

    args = torch.randn(1, 4, 8, 8), torch.randn(6, 4, 3, 3)
    compiled = deplodock.compile(function, args, executor="emulator")
    torch.testing.assert_close(compiled(*args), function(*args), rtol=1e-4, atol=1e-4)
