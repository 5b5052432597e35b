"""Programs with sizes known only at run time, from tensors down: one program, one CUDA text, for all sizes.

Every level runs at every size and is compared with NumPy; the kernel level also with what its grid and masks may touch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend import reference
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.launch_plan import make_plan
from deplodock.backend.nvrtc import compile_cubin
from deplodock.backend.simulator import simulate
from deplodock.dialects.parsing import make_context, parse_module
from deplodock.passes.pipelines import parse_passes

HEAD = """
#s0 = #payload.symbol<s0[1:1025]>
#s1 = #payload.symbol<s1[0:4097]>
!X = tensor<?x48xf32, #payload.extents<#s0, 48>>
!M = tensor<?x?xf32, #payload.extents<#s0, #s1>>
!V = tensor<?xf32, #payload.extents<#s0>>
!P = tensor<?x24x?xf32, #payload.extents<#s0, 24, #s1>>
!Y = tensor<?x24xf32, #payload.extents<#s0, 24>>
!B = tensor<?x24xf32, #payload.extents<#s1, 24>>
"""

ELEMENTWISE = """
func.func @main(%x: !X, %b: tensor<48xf32>) -> !X {
  %bb = tensor.index_map %b[affine_map<(d0, d1) -> (d1)>] : tensor<48xf32> -> !X
  %y = arith.addf %x, %bb : !X
  func.return %y : !X
}
"""

SOFTMAX = """
func.func @main(%x: !M) -> !M {
  %m = tensor.reduce max %x over [1] : !M -> !V
  %mb = tensor.index_map %m[affine_map<(d0, d1) -> (d0)>] : !V -> !M
  %d = arith.subf %x, %mb : !M
  %e = math.exp %d : !M
  %l = tensor.reduce add %e over [1] : !M -> !V
  %lb = tensor.index_map %l[affine_map<(d0, d1) -> (d0)>] : !V -> !M
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
  %l = tensor.index_map %a[affine_map<(d0, d1, d2) -> (d0, d2)>] : !M -> !P
  %r = tensor.index_map %b[affine_map<(d0, d1, d2) -> (d2, d1)>] : !B -> !P
  %p = arith.mulf %l, %r : !P
  %y = tensor.reduce add %p over [2] : !P -> !Y
  func.return %y : !Y
}
"""

Compute = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Case:
    """A program, the shapes of its arguments at sizes (s0, s1), and what it computes in float64."""

    text: str
    shapes: Callable[[int, int], list[tuple[int, ...]]]
    compute: Compute
    sizes: tuple[tuple[int, int], ...]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


CASES = {
    "elementwise": Case(
        ELEMENTWISE, lambda m, _: [(m, 48), (48,)], np.add, ((1, 0), (2, 0), (7, 0), (128, 0), (1000, 0))
    ),
    "softmax": Case(
        SOFTMAX, lambda m, n: [(m, n)], softmax, ((1, 1), (7, 2), (2, 7), (1, 128), (128, 3), (2, 1000), (1, 4096))
    ),
    "mean": Case(MEAN, lambda _, n: [(3, n)], lambda x: x.mean(axis=1), ((1, 1), (1, 7), (1, 1000))),
    "matmul": Case(
        MATMUL,
        lambda m, k: [(m, k), (k, 24)],
        np.matmul,
        ((1, 1), (2, 7), (7, 0), (7, 128), (128, 2), (1000, 7), (2, 1000)),
    ),
}


def lowered(text: str, *pipelines: str) -> ModuleOp:
    ctx = make_context()
    module = parse_module(ctx, text, "dynamic.mlir")
    for p in parse_passes(",".join(pipelines)):
        p.apply(ctx, module)
    module.verify()
    return module


def arguments(case: Case, sizes: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(hash(sizes) % 1000)
    return [rng.standard_normal(shape).astype(np.float32) for shape in case.shapes(*sizes)]


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
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        outputs, report = simulate(kernels, args)
        report.raise_errors()
        np.testing.assert_allclose(outputs[0], want, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def printed() -> dict[str, tuple[str, EmulatedProgram]]:
    """The CUDA text of every case, compiled for the host once."""
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
        np.testing.assert_allclose(got, wanted(case, args), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_120"])
def test_the_compiler_takes_the_text_without_spills(arch: str, printed: dict[str, tuple[str, EmulatedProgram]]) -> None:
    for text, _ in printed.values():
        assert all(not k.spills for k in compile_cubin(text, arch).kernels.values())
