"""Lowering from loop nests with schedules to kernels, compared with the loop level in the simulator.

Results must be exact in the exact domain and close in floats, without a report of the simulator.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.attention_nests import attention
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.check_each import make_inputs
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.support.calls import main_function
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.tile.schedule import ScheduleAttr
from deplodock.passes.pipelines import parse_passes

TILE = "convert-loop-to-tile,cse,dce,tile-assign-layouts,verify-level{level=tile},tile-stage-dot-operands,cse"
KERNEL = "convert-tile-to-kernel,verify-level{level=kernel},cse,dce,kernel-allocate-shared,kernel-insert-barriers"

SOFTMAX = """
func.func @main(%x: tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32> {{
  %y = loop.nest (%i, %j) in [{m}, {n}] -> tensor<{m}x{n}xf32> {{
    %m, %l = loop.staged_reduce -> f32, f32 stages {{
      %m0 = loop.reduce max (%k) in [{n}] -> f32 {{
        %v = loop.load %x[%i, %k] : tensor<{m}x{n}xf32>
        loop.yield %v : f32
      }}
      %l0 = loop.reduce add (%k) in [{n}] -> f32 {{
        %v = loop.load %x[%i, %k] : tensor<{m}x{n}xf32>
        %d = arith.subf %v, %m0 : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      }}
      loop.yield %m0, %l0 : f32, f32
    }} rescale (%om: f32, %ol: f32, %nm: f32, %nl: f32) {{
      %d = arith.subf %om, %nm : f32
      %s = math.exp %d : f32
      %t = arith.mulf %ol, %s : f32
      loop.yield %om, %t : f32, f32
    }}
    %v = loop.load %x[%i, %j] : tensor<{m}x{n}xf32>
    %d = arith.subf %v, %m : f32
    %e = math.exp %d : f32
    %r = arith.divf %e, %l : f32
    loop.yield %r : f32
  }}
  func.return %y : tensor<{m}x{n}xf32>
}}
"""

MATMUL = """
func.func @main(%x: tensor<{m}x{k}x{t}>, %b: tensor<{k}x{t}>, %w: tensor<{wshape}x{t}>, %r: tensor<{m}x{n}xf32>)
    -> tensor<{m}x{n}xf32> {{
  %y = loop.nest (%i, %j) in [{m}, {n}] -> tensor<{m}x{n}xf32> {{
    %s = loop.reduce add (%k) in [{k}] -> f32 {{
      %v0 = loop.load %x[%i, %k] : tensor<{m}x{k}x{t}>
      %u0 = loop.load %b[%k] : tensor<{k}x{t}>
      %z0 = loop.load %w[{wmap}] : tensor<{wshape}x{t}>
      %v = payload.cast %v0 : {t} -> f32
      %u = payload.cast %u0 : {t} -> f32
      %z = payload.cast %z0 : {t} -> f32
      %a = arith.addf %v, %u : f32
      %p = arith.mulf %a, %z : f32
      loop.yield %p : f32
    }}
    %q = loop.load %r[%i, %j] : tensor<{m}x{n}xf32>
    %o = arith.addf %s, %q : f32
    %zero = payload.constant 0.0 : f32
    %f = arith.maximumf %o, %zero : f32
    loop.yield %f : f32
  }}
  func.return %y : tensor<{m}x{n}xf32>
}}
"""


TRANSPOSE = """
func.func @main(%x: tensor<{n}x{m}xf32>, %b: tensor<{m}xi1>) -> (tensor<{m}x{n}xf32>, tensor<{m}x{n}xi64>) {{
  %y, %z = loop.nest (%i, %j) in [{m}, {n}] -> tensor<{m}x{n}xf32>, tensor<{m}x{n}xi64> {{
    %v = loop.load %x[%j, %i] : tensor<{n}x{m}xf32>
    %c = loop.load %b[%i] : tensor<{m}xi1>
    %k = payload.cast %j : index -> i64
    %f = payload.cast %k : i64 -> f32
    %r = payload.select %c, %v, %f : f32
    loop.yield %r, %k : f32, i64
  }}
  func.return %y, %z : tensor<{m}x{n}xf32>, tensor<{m}x{n}xi64>
}}
"""

GATHER = """
func.func @main(%x: tensor<7x{n}xf32>, %t: tensor<{m}xi64>) -> tensor<{m}x{n}xf32> {{
  %y = loop.nest (%i, %j) in [{m}, {n}] -> tensor<{m}x{n}xf32> {{
    %zero = payload.constant 0.0 : f32
    %i0 = loop.load %t[%i] : tensor<{m}xi64>
    %k = payload.cast %i0 : i64 -> index
    %g = loop.load %x[symbol(%k), %j]
         where 0 <= symbol(%k) < 7 else %zero : tensor<7x{n}xf32>
    %h = loop.load %x[%i mod 7, (%i * 3 + %j) floordiv 4 mod {n}] : tensor<7x{n}xf32>
    %p = loop.load %x[2, %j - 1]
         where 0 <= %j - 1 < {n} else %zero : tensor<7x{n}xf32>
    %a = arith.addf %g, %h : f32
    %o = arith.subf %a, %p : f32
    loop.yield %o : f32
  }}
  func.return %y : tensor<{m}x{n}xf32>
}}
"""

VIEWS = """
func.func @main(%x: tensor<6x25xf32>, %z: tensor<6x24xf32>, %w: tensor<6x64xbf16>) -> tensor<6x24xf32> {{
  %y = loop.nest (%i, %j) in [6, 24] -> tensor<6x24xf32> {{
    %zero = payload.constant 0.0 : f32
    %one = payload.constant 1.0 : bf16
    %a = loop.load %x[%i, %j] : tensor<6x25xf32>
    %b = loop.load %z[%i, %j]
         where 2 <= %j < 21 else %zero : tensor<6x24xf32>
    %c0 = loop.load %w[%i, %j + 33] : tensor<6x64xbf16>
    %d0 = loop.load %w[5 - %i, %j * 2 + 2] : tensor<6x64xbf16>
    %e0 = loop.load %w[((%i * 5 + %j - 9) floordiv 7) mod 6, (%j - 11) mod 64]
         where 3 <= %j - %i < 24 else %one : tensor<6x64xbf16>
    %h0 = loop.load %w[%i, (40 - %j * 3) floordiv 4 + 8] : tensor<6x64xbf16>
    %h = payload.cast %h0 : bf16 -> f32
    %c = payload.cast %c0 : bf16 -> f32
    %d = payload.cast %d0 : bf16 -> f32
    %e = payload.cast %e0 : bf16 -> f32
    %ab = arith.subf %a, %b : f32
    %cd = arith.mulf %c, %d : f32
    %abcd = arith.addf %ab, %cd : f32
    %abcde = arith.addf %abcd, %e : f32
    %o = arith.mulf %abcde, %h : f32
    loop.yield %o : f32
  }}
  func.return %y : tensor<6x24xf32>
}}
"""

BOOLEANS = """
func.func @main(%x: tensor<{m}x{n}xi1>, %w: tensor<{n}xi64>) -> (tensor<{m}xi1>, tensor<{m}xi64>) {{
  %y = loop.nest (%i) in [{m}] -> tensor<{m}xi1> {{
    %s = loop.reduce max (%k) in [{n}] -> i1 {{
      %v = loop.load %x[%i, %k] : tensor<{m}x{n}xi1>
      loop.yield %v : i1
    }}
    %t = loop.reduce min (%k) in [{n}] -> i1 {{
      %v = loop.load %x[%i, %k] : tensor<{m}x{n}xi1>
      loop.yield %v : i1
    }}
    %o = arith.xori %s, %t : i1
    loop.yield %o : i1
  }}
  %z = loop.nest (%i) in [{m}] -> tensor<{m}xi64> {{
    %s = loop.reduce add (%k) in [{n}] -> i64 {{
      %v = loop.load %x[%i, %k] : tensor<{m}x{n}xi1>
      %c = payload.cast %v : i1 -> i64
      %u = loop.load %w[%k] : tensor<{n}xi64>
      %p = arith.muli %c, %u : i64
      loop.yield %p : i64
    }}
    loop.yield %s : i64
  }}
  func.return %y, %z : tensor<{m}xi1>, tensor<{m}xi64>
}}
"""

COLUMNS = """
func.func @main(%x: tensor<{m}x{n}xf32>) -> (tensor<{n}xf32>, tensor<f32>) {{
  %y = loop.nest (%j) in [{n}] -> tensor<{n}xf32> {{
    %s = loop.reduce max (%k) in [{m}] -> f32 {{
      %v = loop.load %x[%k, %j] : tensor<{m}x{n}xf32>
      loop.yield %v : f32
    }}
    loop.yield %s : f32
  }}
  %z = loop.nest () in [] -> tensor<f32> {{
    %s = loop.reduce add (%k) in [{n}] -> f32 {{
      %v = loop.load %y[%k] : tensor<{n}xf32>
      loop.yield %v : f32
    }}
    loop.yield %s : f32
  }}
  func.return %y, %z : tensor<{n}xf32>, tensor<f32>
}}
"""


def schedule(
    block: list[int], chunk: list[int], warps: int, thread: tuple[int, ...] = (), serial: tuple[int, ...] = ()
) -> ScheduleAttr:
    return ScheduleAttr.get(block, chunk, warps=warps, thread=thread, serial=serial)


def matmul(m: int, n: int, k: int, t: str = "f32", transposed: bool = False) -> str:
    wshape, wmap = (f"{n}x{k}", "%j, %k") if transposed else (f"{k}x{n}", "%k, %j")
    return MATMUL.format(m=m, n=n, k=k, t=t, wshape=wshape, wmap=wmap)


CASES = {
    "softmax a row a block": (SOFTMAX.format(m=5, n=512), [schedule([1, 512], [512, 512], 4)]),
    "softmax odd row": (SOFTMAX.format(m=3, n=77), [schedule([1, 128], [128, 128], 2)]),
    "softmax rows of one warp": (SOFTMAX.format(m=10, n=32), [schedule([8, 32], [32, 32], 4)]),
    "softmax rows across warps": (SOFTMAX.format(m=6, n=60), [schedule([4, 64], [64, 64], 8)]),
    "softmax chunked": (SOFTMAX.format(m=3, n=200), [schedule([1, 64], [64, 64], 2, serial=(1,))]),
    "softmax chunked rows": (SOFTMAX.format(m=7, n=100), [schedule([4, 32], [32, 32], 2, serial=(1,))]),
    "matmul": (matmul(32, 64, 32), [schedule([32, 32], [16], 2, thread=(4, 4))]),
    "matmul odd": (matmul(37, 19, 45), [schedule([16, 16], [32], 2, thread=(2, 4))]),
    "matmul odd wide": (matmul(70, 66, 21), [schedule([64, 64], [8], 2, thread=(8, 8))]),
    "matmul transposed": (matmul(32, 32, 64, transposed=True), [schedule([32, 32], [32], 1, thread=(8, 4))]),
    "matmul bf16": (matmul(40, 24, 33, "bf16", True), [schedule([32, 16], [16], 4, thread=(2, 2))]),
    "matmul f16 few": (matmul(3, 5, 17, "f16"), [schedule([4, 4], [16], 2, thread=(1, 1))]),
    "matmul without tile rows": (matmul(3, 64, 40), [schedule([1, 64], [32], 2)]),
    "attention": (attention(33, 50, 16, 8), [schedule([32, 8], [32, 16, 16, 16], 4)]),
    "attention wide": (attention(20, 70, 12, 40), [schedule([16, 64], [32, 16, 16, 16], 4)]),
    "attention few": (attention(5, 9, 4, 4), [schedule([4, 4], [4, 4, 4, 4], 2, thread=(2, 2))]),
    "transpose": (TRANSPOSE.format(m=33, n=40), [schedule([16, 32], [], 4)]),
    "transpose narrow": (TRANSPOSE.format(m=33, n=40), [schedule([32, 1], [], 1)]),
    "gather": (GATHER.format(m=9, n=24), [schedule([4, 32], [], 2)]),
    "gather rows": (GATHER.format(m=9, n=24), [schedule([1, 32], [], 1)]),
    "views": (VIEWS.format(), [schedule([2, 32], [], 1)]),
    "views in one row": (VIEWS.format(), [schedule([1, 32], [], 1)]),
    "views replicated": (VIEWS.format(), [schedule([2, 8], [], 4)]),
    "booleans": (BOOLEANS.format(m=9, n=50), [schedule([2], [64], 4), schedule([4], [16], 2)]),
    "columns": (COLUMNS.format(m=50, n=36), [schedule([32], [16], 4), schedule([], [64], 2)]),
    "columns at once": (COLUMNS.format(m=20, n=130), [schedule([64], [32], 8), schedule([], [32], 1)]),
}


PRINTED = "cse,dce"


def lower(module: ModuleOp, pipeline: str) -> None:
    ctx = make_context()
    for p in parse_passes(pipeline):
        p.apply(ctx, module)
        module.verify()


def planned(case: str) -> ModuleOp:
    text, schedules = CASES[case]
    module = parse_module(make_context(), text, "test.mlir")
    nests = [op for op in module.walk() if op.name == "loop.nest"]
    for nest, s in zip(nests, schedules, strict=True):
        reductions = sum(len(op.body.block.args) for op in nest.walk() if op.name == "loop.reduce")  # pyright: ignore
        chunks = (list(s.data.chunk) * reductions)[:reductions]
        nest.attributes["schedule"] = s.changed(chunk=chunks)
    return module


@pytest.mark.parametrize("case", CASES)
def test_threads_compute_what_the_loops_say(case: str) -> None:
    module = planned(case)
    args = make_inputs(list(main_function(module).function_type.inputs))
    exact, real = run(module, args, "exact"), run(module, args, "real")
    lower(module, TILE)
    for got, wanted in zip(run(module, args, "exact"), exact, strict=True):
        np.testing.assert_array_equal(got, wanted, err_msg="tile level")
    lower(module, KERNEL)
    found = simulate(module, args, domain="exact")
    assert not found.report.findings, str(found.report)
    assert all(c.duplicates == 0 for c in found.report.launches), "every element is stored by one thread"
    for got, wanted in zip(found.outputs, exact, strict=True):
        np.testing.assert_array_equal(got, wanted)
    floats = simulate(module, args)
    assert not floats.report.findings
    for got, wanted in zip(floats.outputs, real, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=3e-5, atol=3e-5)


def test_the_printed_text_computes_what_the_loops_say() -> None:
    expected, inputs, plans, sources = [], [], [], []
    for case in CASES:
        module = planned(case)
        args = make_inputs(list(main_function(module).function_type.inputs))
        expected.append(run(module, args, "real"))
        inputs.append(args)
        lower(module, f"{TILE},{KERNEL},{PRINTED}")
        plans.append(make_plan(module))
        sources.append(print_cuda(module))
    compiled = zip(CASES, sources, plans, compile_many(sources), inputs, expected, strict=True)
    for case, source, plan, emulated, args, wanted in compiled:
        outputs, reports = EmulatedProgram(source, plan, emulated).run(args)
        assert not reports, f"{case}: {reports[0]}"
        for got, value in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(got.astype(np.float64), value, rtol=3e-5, atol=3e-5, err_msg=case)
