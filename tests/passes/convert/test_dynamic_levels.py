"""Programs with dynamic sizes at every level: one program and one CUDA text for all sizes.

Every level runs at every size and is compared with NumPy. The simulator also checks that no thread leaves its buffers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend import reference
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.support.printing import print_module
from deplodock.errors import ExecutionError, ShapeError
from deplodock.passes.pipelines import parse_passes

HEAD = """
#s0 = #payload.symbol<s0[0:1025]>
#s1 = #payload.symbol<s1[0:4097]>
#s2 = #payload.symbol<s2[1:1025]>
!X = tensor<?x48xf32, #payload.extents<#s0, 48>>
!M = tensor<?x?xf32, #payload.extents<#s0, #s1>>
!V = tensor<?xf32, #payload.extents<#s0>>
!P = tensor<?x24x?xf32, #payload.extents<#s0, 24, #s1>>
!Y = tensor<?x24xf32, #payload.extents<#s0, 24>>
!B = tensor<?x24xf32, #payload.extents<#s1, 24>>
"""

ELEMENTWISE = """
func.func @main(%x: !X, %b: tensor<48xf32>) -> !X {
  %bb = tensor.index_map %b[d1] : tensor<48xf32> -> !X
  %y = arith.addf %x, %bb : !X
  func.return %y : !X
}
"""

SOFTMAX = """
func.func @main(%x: !M) -> !M {
  %m = tensor.reduce max %x over [1] : !M -> !V
  %mb = tensor.index_map %m[d0] : !V -> !M
  %d = arith.subf %x, %mb : !M
  %e = math.exp %d : !M
  %l = tensor.reduce add %e over [1] : !M -> !V
  %lb = tensor.index_map %l[d0] : !V -> !M
  %y = arith.divf %e, %lb : !M
  func.return %y : !M
}
"""

MEAN = """
func.func @main(%x: tensor<3x?xf32, #payload.extents<3, #s1>>) -> tensor<3xf32> {
  %s = tensor.reduce add %x over [1] : tensor<3x?xf32, #payload.extents<3, #s1>> -> tensor<3xf32>
  %n = payload.extent #s1 : tensor<3xi64>
  %f = payload.cast %n : tensor<3xi64> -> tensor<3xf32>
  %y = arith.divf %s, %f : tensor<3xf32>
  func.return %y : tensor<3xf32>
}
"""

MATMUL = """
func.func @main(%a: !M, %b: !B) -> !Y {
  %l = tensor.index_map %a[d0, d2] : !M -> !P
  %r = tensor.index_map %b[d2, d1] : !B -> !P
  %p = arith.mulf %l, %r : !P
  %y = tensor.reduce add %p over [2] : !P -> !Y
  func.return %y : !Y
}
"""

NARROW = """
!A = tensor<?x?xbf16, #payload.extents<#s0, #s1>>
!C = tensor<?x64xbf16, #payload.extents<#s1, 64>>
!D = tensor<?x64xf32, #payload.extents<#s1, 64>>
!E = tensor<?x64x?xf32, #payload.extents<#s0, 64, #s1>>
!F = tensor<?x64xf32, #payload.extents<#s0, 64>>
func.func @main(%a: !A, %b: !C) -> !F {
  %af = payload.cast %a : !A -> !M
  %bf = payload.cast %b : !C -> !D
  %l = tensor.index_map %af[d0, d2] : !M -> !E
  %r = tensor.index_map %bf[d2, d1] : !D -> !E
  %p = arith.mulf %l, %r : !E
  %y = tensor.reduce add %p over [2] : !E -> !F
  func.return %y : !F
}
"""
"""On tensor cores."""

ATTENTION = """
!Q = tensor<?x2x?x16xf32, #payload.extents<#s0, 2, #s2, 16>>
!S = tensor<?x2x?x?xf32, #payload.extents<#s0, 2, #s2, #s2>>
!I = tensor<?x2x?x?xi64, #payload.extents<#s0, 2, #s2, #s2>>
!R = tensor<?x2x?xf32, #payload.extents<#s0, 2, #s2>>
!G = tensor<?x2x?x?x16xf32, #payload.extents<#s0, 2, #s2, #s2, 16>>
!O = tensor<?x2x?x16x?xf32, #payload.extents<#s0, 2, #s2, 16, #s2>>
func.func @main(%q: !Q, %k: !Q, %v: !Q) -> !Q {
  %ql = tensor.index_map %q[d0, d1, d2, d4] : !Q -> !G
  %kl = tensor.index_map %k[d0, d1, d3, d4] : !Q -> !G
  %p = arith.mulf %ql, %kl : !G
  %s = tensor.reduce add %p over [4] : !G -> !S
  %i = tensor.iota 2 : !I
  %j = tensor.iota 3 : !I
  %seen = payload.cmp le %j, %i : !I
  %low = payload.constant 0xff800000 : !S
  %c = payload.select %seen, %s, %low : !S
  %m = tensor.reduce max %c over [3] : !S -> !R
  %mb = tensor.index_map %m[d0, d1, d2] : !R -> !S
  %d = arith.subf %c, %mb : !S
  %e = math.exp %d : !S
  %l = tensor.reduce add %e over [3] : !S -> !R
  %lb = tensor.index_map %l[d0, d1, d2] : !R -> !S
  %w = arith.divf %e, %lb : !S
  %wb = tensor.index_map %w[d0, d1, d2, d4] : !S -> !O
  %vb = tensor.index_map %v[d0, d1, d4, d3] : !Q -> !O
  %pv = arith.mulf %wb, %vb : !O
  %o = tensor.reduce add %pv over [4] : !O -> !Q
  func.return %o : !Q
}
"""
"""Causal; one kernel."""

Compute = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Case:
    """A program, the shapes of its arguments for sizes (s0, s1), and a function that computes the result in float64."""

    text: str
    shapes: Callable[[int, int], list[tuple[int, ...]]]
    compute: Compute
    sizes: tuple[tuple[int, int], ...]
    dtype: object = np.float32


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    s = q @ k.swapaxes(2, 3)
    e = np.exp(np.where(np.tril(np.ones(s.shape[2:], bool)), s, -np.inf) - s.max())
    return e / e.sum(axis=3, keepdims=True) @ v


CASES = {
    "elementwise": Case(
        ELEMENTWISE, lambda m, _: [(m, 48), (48,)], np.add, ((0, 0), (1, 0), (2, 0), (7, 0), (128, 0), (1000, 0))
    ),
    "softmax": Case(
        SOFTMAX,
        lambda m, n: [(m, n)],
        softmax,
        ((0, 5), (1, 1), (7, 2), (2, 7), (1, 128), (128, 3), (2, 1000), (1, 4096)),
    ),
    "mean": Case(MEAN, lambda _, n: [(3, n)], lambda x: x.mean(axis=1), ((1, 1), (1, 7), (1, 1000))),
    "matmul": Case(
        MATMUL,
        lambda m, k: [(m, k), (k, 24)],
        np.matmul,
        ((0, 7), (1, 1), (2, 7), (7, 0), (7, 128), (128, 2), (1000, 7), (2, 1000)),
    ),
    "narrow": Case(
        NARROW,
        lambda m, k: [(m, k), (k, 64)],
        np.matmul,
        ((1, 1), (7, 0), (2, 7), (7, 128), (128, 2), (1, 1000)),
        ml_dtypes.bfloat16,
    ),
    "attention": Case(ATTENTION, lambda b, s: [(b, 2, s, 16)] * 3, attention, ((1, 1), (7, 2), (2, 7), (1, 128))),
}


def lowered(text: str, *pipelines: str) -> ModuleOp:
    ctx = make_context()
    module = parse_module(ctx, text, "dynamic.mlir")
    for p in parse_passes(",".join(pipelines)):
        p.apply(ctx, module)
    module.verify()
    return module


def arguments(case: Case, sizes: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(sizes)
    return [rng.standard_normal(shape).astype(case.dtype) for shape in case.shapes(*sizes)]


def wanted(case: Case, args: list[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(case.compute(*(a.astype(np.float64) for a in args)))


@pytest.mark.parametrize("name", CASES)
def test_every_level_at_every_size(name: str) -> None:
    case = CASES[name]
    stages = ("tensor-to-loop", "loop-to-tile")
    levels = [lowered(HEAD + case.text, *stages[:n]) for n in range(3)]
    kernels = lowered(HEAD + case.text, *stages, "tile-to-kernel")
    for sizes in case.sizes:
        args = arguments(case, sizes)
        want = wanted(case, args)
        for module in levels:
            (got,) = reference.run(module, args)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        outputs, report = simulate(kernels, args)
        report.raise_errors()
        np.testing.assert_allclose(outputs[0], want, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def printed() -> dict[str, tuple[str, EmulatedProgram]]:
    """Returns the CUDA of every case and its program for the emulator, built together."""
    modules = {n: lowered(HEAD + c.text, "tensor-to-loop", "loop-to-tile", "tile-to-kernel") for n, c in CASES.items()}
    texts = {n: print_cuda(m) for n, m in modules.items()}
    built = compile_many(list(texts.values()))
    return {
        n: (texts[n], EmulatedProgram(texts[n], make_plan(modules[n]), b)) for n, b in zip(CASES, built, strict=True)
    }


@pytest.mark.parametrize("name", CASES)
def test_one_text_serves_all_sizes(name: str, printed: dict[str, tuple[str, EmulatedProgram]]) -> None:
    case = CASES[name]
    for sizes in case.sizes:
        args = arguments(case, sizes)
        (got,), reports = printed[name][1].run(args, seeds=(0,))
        assert not reports, (sizes, str(reports[0]))
        np.testing.assert_allclose(got, wanted(case, args), rtol=1e-4, atol=1e-4)


def test_sizes_out_of_range_are_refused_before_anything_runs(printed: dict[str, tuple[str, EmulatedProgram]]) -> None:
    program = printed["matmul"][1]
    for a, b, message in (
        ((1025, 7), (7, 24), "the size s0 is 1025, outside of 0 to 1024"),
        ((1, 4097), (4097, 24), "the size s1 is 4097, outside of 0 to 4096"),
        ((1, 7), (6, 24), "dimension 0 is 6, not 7, which s1 is elsewhere"),
    ):
        with pytest.raises(ShapeError, match=message):
            program.run([np.zeros(a, np.float32), np.zeros(b, np.float32)])


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_120"])
def test_the_compiler_takes_the_text_without_spills(arch: str, printed: dict[str, tuple[str, EmulatedProgram]]) -> None:
    for text, _ in printed.values():
        assert all(not k.spills for k in compile_cubin(text, arch).kernels.values())


@dataclass(frozen=True)
class Bug:
    """A bug in the text of a case at a level: `new` replaces match `number` of `pattern`."""

    case: str
    sizes: tuple[int, int]
    level: str
    pattern: str
    new: str
    number: int = -1

    def plant(self, text: str) -> str:
        match = list(re.finditer(self.pattern, text))[self.number]
        return text[: match.start()] + self.new + text[match.end() :]


BUGS = {
    "a row too many is stored": Bug("matmul", (7, 2), "kernel", r"< #s0\b", "< 9"),
    "columns past the end are loaded": Bug("matmul", (7, 2), "kernel", r"< #s1\b", "< 40", 0),
    "a grid for fewer rows": Bug("matmul", (40, 2), "kernel", r"#s0 / 16", "#s0 / 64"),
    "a grid of another size": Bug("softmax", (7, 2), "kernel", r"grid \[#s0 / \d+\]", "grid [#s1 / 4]"),
    "chunks without the last": Bug("mean", (1, 600), "tile", r"arith.addi %s1, %\w+", "arith.addi %s1, %c0"),
    "buffers of another shape": Bug("softmax", (7, 2), "tile", r"(?<=< )#s1\b", "#s0"),
    "the pitch of another size": Bug("softmax", (7, 2), "cuda", r"\* s1", "* (s1 + 1)"),
    "the pitch of a register of another size": Bug("attention", (1, 128), "cuda", r"\* s2", "* 16"),
    "sizes in another order": Bug("matmul", (7, 2), "cuda", r"int s1, int s0\)", "int s0, int s1)"),
    "an end that is one too far": Bug("elementwise", (7, 0), "cuda", r"< s0\b", "<= s0"),
    "a loop without the last chunk": Bug("matmul", (7, 40), "cuda", r"\(s1 \+ \d+\) /", "s1 /"),
}


def objection(bug: Bug, got: np.ndarray, reports: Sequence[object], args: list[np.ndarray]) -> str:
    if reports:
        return str(reports[0])
    want = wanted(CASES[bug.case], args)
    return "" if np.allclose(got, want, rtol=1e-3, atol=1e-3) else "another result"


@pytest.mark.parametrize("name", [n for n, b in BUGS.items() if b.level != "cuda"])
def test_planted_bugs_of_the_ir_are_caught(name: str) -> None:
    bug = BUGS[name]
    stages = ["tensor-to-loop", "loop-to-tile", "tile-to-kernel"][: 3 if bug.level == "kernel" else 2]
    module = parse_module(make_context(), bug.plant(print_module(lowered(HEAD + CASES[bug.case].text, *stages))), "x")
    args = arguments(CASES[bug.case], bug.sizes)
    found: Sequence[object] = ()
    try:
        if bug.level == "kernel":
            outputs, report = simulate(module, args)
            found = report.findings
        else:
            outputs = reference.run(module, args)
    except ExecutionError as error:
        outputs, found = args, [error]
    assert objection(bug, outputs[0], found, args)


def test_planted_bugs_of_the_text_are_caught(printed: dict[str, tuple[str, EmulatedProgram]]) -> None:
    bugs = {n: b for n, b in BUGS.items() if b.level == "cuda"}
    texts = [b.plant(printed[b.case][0]) for b in bugs.values()]
    for (name, bug), text, built in zip(bugs.items(), texts, compile_many(texts), strict=True):
        args = arguments(CASES[bug.case], bug.sizes)
        outputs, reports = EmulatedProgram(text, printed[bug.case][1].plan, built).run(args, seeds=(0,))
        assert objection(bug, outputs[0], reports, args), name


BOXES = """
#s0 = #payload.symbol<s0[1:1025]>
!A = tensor<?x128xbf16, #payload.extents<#s0, 128>>
!Y = tensor<?x64xf32, #payload.extents<#s0, 64>>
func.func @main(%a: !A, %b: tensor<64x128xbf16>) -> !Y {
  %c = loop.nest (%i, %j) in [#s0, 64] -> !Y
         attributes {schedule = #tile.schedule<block = [64, 64], chunk = [64], warps = 4, stages = 2, SCHEDULE>} {
    %0 = loop.reduce add (%k) in [128] -> f32 {
      %1 = loop.load %a[%i, %k] : !A
      %2 = payload.cast %1 : bf16 -> f32
      %3 = loop.load %b[%j, %k] : tensor<64x128xbf16>
      %4 = payload.cast %3 : bf16 -> f32
      %5 = arith.mulf %2, %4 : f32
      loop.yield %5 : f32
    }
    loop.yield %0 : f32
  }
  func.return %c : !Y
}
"""


def test_boxes_end_with_the_buffer() -> None:
    """A tensor map has the size of the call, so TMA loads zeros for elements after the end of the buffer."""
    module = lowered(BOXES.replace("SCHEDULE", "atom = wgmma, copy = tma"), "loop-to-tile", "tile-to-kernel")
    text = print_cuda(module)
    assert text.count("tma_load2(&") == 2
    program = EmulatedProgram(text, make_plan(module))
    for n in (1, 130):
        rng = np.random.default_rng(n)
        a, b = (rng.standard_normal((rows, 128)).astype(ml_dtypes.bfloat16) for rows in (n, 64))
        want = a.astype(np.float64) @ b.astype(np.float64).T
        (got,), reports = program.run([a, b], seeds=(0,))
        assert not reports
        np.testing.assert_allclose(got, want, atol=1e-4)
        outputs, report = simulate(module, [a, b])
        report.raise_errors()
        np.testing.assert_allclose(outputs[0], want, atol=1e-4)
