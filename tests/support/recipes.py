"""The recipes of docs/howto as functions that change a copy of the library."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from . import ROOT, TESTS
from .library_copies import declared_entry_points, install_package

EXAMPLE = ROOT / "examples" / "kernel_operations"


def edit(path: Path, anchor: str, text: str) -> None:
    """Inserts a text into a file.

    Args:
        path: the file.
        anchor: the inserted text precedes the only occurrence of this text.
        text: the inserted text.
    """
    before = path.read_text(encoding="utf-8")
    assert before.count(anchor) == 1, (path.name, anchor)
    path.write_text(before.replace(anchor, text + anchor), encoding="utf-8")


def append_row(path: Path, table: str, row: str) -> None:
    """Inserts a row at the end of a table.

    Args:
        path: the file.
        table: name of the only tuple that the file assigns to this name.
        row: the line.
    """
    source = path.read_text(encoding="utf-8")
    (tuple_,) = (
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table
    )
    lines = source.splitlines(keepends=True)
    lines.insert((tuple_.end_lineno or 0) - 1, row)
    path.write_text("".join(lines), encoding="utf-8")


def remove_feature(copy: Path, name: str = "complex") -> None:
    """Deletes a feature of capture: its file, and its line in `FEATURES`."""
    register = copy / "frontend" / "capture" / "features" / "__init__.py"
    lines = register.read_text(encoding="utf-8").splitlines(keepends=True)
    remaining = [line for line in lines if f'Feature("{name}"' not in line]
    assert len(lines) - len(remaining) == 1
    register.write_text("".join(remaining), encoding="utf-8")
    (register.parent / f"{name}.py").unlink()


def add_frontend(copy: Path) -> None:
    """Adds the array language of the tests to the copy."""
    shutil.copy(TESTS / "support" / "arrays.py", copy / "frontend" / "arrays.py")


def add_atom(copy: Path) -> None:
    """Adds the row that docs/howto/atom.md shows: m16n8k8 of bf16."""
    page = (ROOT / "docs" / "howto" / "atom.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^    MmaAtom\(.*\),$", page, re.MULTILINE)
    append_row(copy / "dialects/kernel/mma.py", "MMA_ATOMS", f"{row}\n")


OTHER_ATOMS = """    MmaAtom(f16, "f16", "f16", k=8),
    MmaAtom(f32, "float", "tf32", k=4),
"""
"""Rows for m16n8k8 of f16, and m16n8k4 of f32 as tf32."""

FIRST_ATOM = """    MmaAtom(f64, "double", "f64", k=8, m=16, accumulator=f64),
"""
"""Row for m16n8k8 of f64 (sm_90), to insert before the smaller atom of the type."""


def add_other_atoms(copy: Path) -> None:
    """Adds tensor-core atoms that docs/howto/atom.md does not show."""
    append_row(copy / "dialects/kernel/mma.py", "MMA_ATOMS", OTHER_ATOMS)
    edit(copy / "dialects/kernel/mma.py", '    MmaAtom(f64, "double", "f64", k=4, m=8', FIRST_ATOM)


RECORD = """    Target(
        name="sm_100",
        card="a made-up card",
        capabilities=((10, 0),),
        features=_TMA,
        sms=40,
        shared_per_block=200 * KIB,
        shared_per_sm=201 * KIB,
        threads_per_sm=2048,
        fp32=20e12,
        tensor=200e12,
        bandwidth=1e12,
        l2=30 << 20,
        rates=Rates(
            memory=0.9e12,
            cache=3e12,
            bulk=3e12,
            store=0.8e12,
            vector=9e12,
            special=2e12,
            fma=20e12,
            mma=150e12,
            clock=1.5e9,
        ),
    ),
"""
"""Record of a made-up architecture for `target/architectures.py`."""


def add_target(copy: Path) -> None:
    """Adds an architecture to the table of targets."""
    append_row(copy / "target/architectures.py", "_RECORDS", RECORD)


def add_package(copy: Path) -> None:
    """Installs the package `examples/kernel_operations` into the folder `site` of the copy."""
    install_package(copy / "site", "approximate", declared_entry_points(EXAMPLE), EXAMPLE / "approximate.py")


PASS = '''"""Reciprocal square roots that one instruction approximates: `tile-approximate-rsqrt`."""

from xdsl.dialects.builtin import f32
from xdsl.dialects.math import RsqrtOp

from ...dialects.payload import RsqrtApproxOp, element_type
from ...dialects.tile import KernelOp
from ..pass_manager import TilePass
from ..rewriting import replace


class ApproximateRsqrtPass(TilePass):
    """Replaces `math.rsqrt` of f32 by `payload.rsqrt_approx`.

    ```mlir
    %y = math.rsqrt %x : tensor<64xf32>
    ```
    becomes
    ```mlir
    %y = payload.rsqrt_approx %x : tensor<64xf32>
    ```
    """

    name = "tile-approximate-rsqrt"
    inside = RsqrtOp

    def on(self, op: KernelOp) -> None:
        for rsqrt in [o for o in op.walk() if isinstance(o, RsqrtOp)]:
            if element_type(rsqrt.result.type) == f32:
                replace(rsqrt, RsqrtApproxOp(rsqrt.operand))
'''

OPERATION = '''@irdl_op_definition
class RsqrtApproxOp(PureOp):
    """1 / sqrt(x) of an f32 with a relative error of 2^-22: `rsqrt.approx`."""

    name = "payload.rsqrt_approx"
    operand = operand_def(SAME_TYPE)
    result = result_def(SAME_TYPE)
    assembly_format = "$operand attr-dict `:` type($result)"


'''

HELPER = """//// rsqrt_approx
static __device__ float rsqrt_approx(float x) { float r; asm("rsqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
//// host
{ return 1.0f / __builtin_sqrtf(x); }

"""

LIT_TEST = """// RUN: dl-opt %s -p tile-approximate-rsqrt | filecheck %s

// CHECK: %y = payload.rsqrt_approx %x : tensor<64xf32>
tile.kernel @k(%a: memref<64xf32>, %b: memref<64xf32>) blocks () in [] warps 1 {
  %x = tile.load %a[d0] : memref<64xf32> -> tensor<64xf32>
  %y = math.rsqrt %x : tensor<64xf32>
  tile.store %y, %b[d0] : tensor<64xf32>, memref<64xf32>
}
"""

PRINTER = """    "payload.rsqrt_approx": lambda scalars, op, operands, t: scalars.helper("rsqrt_approx", operands),
"""


def add_operation(copy: Path) -> None:
    """Adds the operation `payload.rsqrt_approx`, and a pass of the default pipeline that creates it."""
    (copy / "passes/tile/approximate_rsqrt.py").write_text(PASS)
    lit = copy / "tests/filecheck/passes/tile/tile-approximate-rsqrt.mlir"
    lit.parent.mkdir(parents=True)
    lit.write_text(LIT_TEST)
    line = '    "tile-approximate-rsqrt": ".tile.approximate_rsqrt:ApproximateRsqrtPass",\n'
    edit(copy / "passes/__init__.py", '    "tile-assign-layouts": ', line)
    edit(copy / "passes/pipelines.py", "tile-assign-layouts,tile-stage", "tile-approximate-rsqrt,")
    edit(copy / "docs/architecture.md", "| `tile-assign-layouts` |", "| `tile-approximate-rsqrt` | ... | ... |\n")
    edit(copy / "dialects/payload/__init__.py", "@irdl_op_definition\nclass CombineBf16x3Op", OPERATION)
    edit(copy / "dialects/payload/__init__.py", "RoundTf32Op, CombineBf16x3Op, AssertOp]", "RsqrtApproxOp, ")
    edit(copy / "backend/interpreter/domains.py", '    "payload.round_tf32": ', _ROW)
    edit(copy / "backend/cpp/expressions.py", '    "payload.round_tf32": ', PRINTER)
    edit(copy / "backend/cpp/functions.cuh", "//// exp2_approx", HELPER)


_ROW = '    "payload.rsqrt_approx": lambda x: np.asarray(1, np.asarray(x).dtype) / np.sqrt(x),\n'

RECIPES: dict[str, Callable[[Path], None]] = {
    "a feature of capture removed": remove_feature,
    "a frontend at the tensor level": add_frontend,
    "a tensor-core atom": add_atom,
    "a target": add_target,
    "passes and operations of a package": add_package,
    "an elementwise operation and its pass": add_operation,
}
"""Row of the table in docs/howto/index.md -> function that makes this change in a copy."""
