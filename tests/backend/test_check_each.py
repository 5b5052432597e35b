"""The check after each pass: equal modules pass, and a change of results names the pass."""

from __future__ import annotations

import numpy as np
import pytest

from deplodock.backend.check_each import Checker, make_inputs, within
from deplodock.backend.host.compiler import compiler
from deplodock.dialects import make_context
from deplodock.dialects.loop.work import count_flops
from deplodock.dialects.shapes.binding import Sizes
from deplodock.dialects.support.calls import main_function
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import ExecutionError

TENSOR = """
func.func @main(%x: tensor<6x50xf32>) -> tensor<6x50xf32> {
  %s = tensor.reduce add %x over [1] : tensor<6x50xf32> -> tensor<6xf32>
  %b = tensor.index_map %s[d0] : tensor<6xf32> -> tensor<6x50xf32>
  %y = arith.divf %x, %b : tensor<6x50xf32>
  func.return %y : tensor<6x50xf32>
}
"""
LOOP = """
func.func @main(%x: tensor<6x50xf32>) -> tensor<6x50xf32> {
  %y = loop.nest (%i, %j) in [6, 50] -> tensor<6x50xf32> {
    %s = loop.reduce add (%k) in [50] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<6x50xf32>
      loop.yield %v : f32
    }
    %v = loop.load %x[%i, %j] : tensor<6x50xf32>
    %o = arith.divf %v, %s : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<6x50xf32>
}
"""
KERNEL = """
kernel.func @k0(%x: memref<6x50xf32>, %y: memref<6x50xf32>) grid [6] warps 1 {
  %zero = payload.constant 0.0 : f32
  %i = kernel.id block
  %t = kernel.id thread
  %v = kernel.load %x[%i, %t] regs [[0, 32]] where 0 <= %t < 50 steps [[32]] else %zero
       : memref<6x50xf32> -> vector<2xf32>
  %s0 = kernel.reduce_registers add %v over [0] : vector<2xf32> -> vector<1xf32>
  %s1 = kernel.shuffle_xor %s0 by 16 : vector<1xf32>
  %a1 = arith.addf %s0, %s1 : vector<1xf32>
  %s2 = kernel.shuffle_xor %a1 by 8 : vector<1xf32>
  %a2 = arith.addf %a1, %s2 : vector<1xf32>
  %s3 = kernel.shuffle_xor %a2 by 4 : vector<1xf32>
  %a3 = arith.addf %a2, %s3 : vector<1xf32>
  %s4 = kernel.shuffle_xor %a3 by 2 : vector<1xf32>
  %a4 = arith.addf %a3, %s4 : vector<1xf32>
  %s5 = kernel.shuffle_xor %a4 by 1 : vector<1xf32>
  %a5 = arith.addf %a4, %s5 : vector<1xf32>
  %r = kernel.shuffle_registers %a5 from [0, 0] : vector<1xf32> -> vector<2xf32>
  %o = arith.divf %v, %r : vector<2xf32>
  kernel.store %o, %y[%i, %t] regs [[0, 32]] where 0 <= %t < 50 steps [[32]]
       : memref<6x50xf32>, vector<2xf32>
}
func.func @main(%x: memref<6x50xf32>, %y: memref<6x50xf32>) {
  kernel.launch @k0(%x, %y) : memref<6x50xf32>, memref<6x50xf32>
  func.return
}
"""
_STORED, _LOADED = KERNEL.rpartition("< 50 ")[::2]
SHORT = f"{_STORED}< 49 {_LOADED}"
TORCH = """
func.func @main(%x: tensor<6x50xf32>) -> tensor<6x50xf32> {
  %y = torch.relu(self = %x) : (tensor<6x50xf32>) -> tensor<6x50xf32>
  func.return %y : tensor<6x50xf32>
}
"""


def module(text: str):
    return parse_module(make_context(), text, "test.mlir")


def test_all_levels_agree():
    checker = Checker(module(TENSOR))
    checker.after("to-loop", module(LOOP))
    checker.after("to-kernel", module(KERNEL))


def test_races_that_nobody_looked_for_are_told(monkeypatch: pytest.MonkeyPatch):
    def missing(emulator: bool = False) -> str:
        raise ExecutionError("there is no g++")

    for found, told in ((compiler, False), (missing, True)):
        monkeypatch.setattr("deplodock.backend.host.compiler.compiler", found)
        checker = Checker(module(TENSOR))
        checker.after("to-kernel", module(KERNEL))
        assert ("races were not looked for: there is no g++" in checker.summary()) == told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            LOOP.replace("in [50] ->", "in [49] ->"),
            r"pass p changed the answer in the exact domain: result 0 at \[0, 0",
        ),
        (LOOP.replace("%x[%i, %j]", "%x[%i, %i]"), r"domain: result 0 at \[0, 1\]"),
        (LOOP.replace("%x[%i, %k]", "%x[%i, %k + 1]"), "after pass p: coordinate 1 is 50, outside 0..49"),
        (KERNEL.replace("by 4 :", "by 2 :"), "pass p changed the answer in the exact domain"),
        (SHORT, "after pass p: unwritten: 6 elements of result 0"),
    ],
)
def test_a_pass_that_changes_the_answer_is_named(text: str, message: str):
    checker = Checker(module(TENSOR))
    with pytest.raises(ExecutionError, match=message):
        checker.after("p", module(text))


EXP_OF_LOG = """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = math.log %x : tensor<8xf32>
  %b = math.exp %a : tensor<8xf32>
  func.return %b : tensor<8xf32>
}"""
LOG_OF_EXP = EXP_OF_LOG.replace("log %x", "exp %x").replace("exp %a", "log %a")


def test_a_verdict_has_values_in_floats_and_the_functions_without_laws():
    """Messages about functions without laws in the exact domain, such as log.

    `exp(log x)` is NaN for x < 0 and not x. `log(exp x)` equals x, which the exact domain cannot know; the message says
    so.
    """
    with pytest.raises(ExecutionError, match=r"at \[1\] is -0.132105 instead of nan in float64") as error:
        Checker(module(EXP_OF_LOG)).after("p", module(EXP_OF_LOG.replace("return %b", "return %x")))
    assert "the exact domain knows no laws of math.log; --check-domain float" in str(error.value)
    same = module(LOG_OF_EXP.replace("return %b", "return %x"))
    with pytest.raises(ExecutionError, match="differs, although it is .* in float64 before and after"):
        Checker(module(LOG_OF_EXP)).after("p", same)
    checker = Checker(module(LOG_OF_EXP), domain="float")
    checker.after("p", same)
    assert "exactly" not in checker.summary()
    with pytest.raises(ExecutionError, match="beyond the rounding of float32"):
        Checker(module(EXP_OF_LOG), domain="float").after("p", module(EXP_OF_LOG.replace("return %b", "return %x")))


def test_lost_precision_is_seen_in_floats_only():
    body = "%o = arith.divf %v, %s : f32\n"
    narrow = (
        "%n = payload.cast %v : f32 -> bf16\n    %w = payload.cast %n : bf16 -> f32\n    %o = arith.divf %w, %s : f32\n"
    )
    with pytest.raises(ExecutionError, match="pass p changed the answer beyond the rounding of float32"):
        Checker(module(TENSOR)).after("p", module(LOOP.replace(body, narrow)))


def test_the_torch_level_is_left_to_pytorch():
    checker = Checker(module(TORCH))
    checker.after("nothing", module(TORCH))
    checker.after("decompose", module(TENSOR))
    with pytest.raises(ExecutionError, match="pass p changed"):
        checker.after("p", module(LOOP.replace("in [50] ->", "in [49] ->")))


def test_large_programs_are_refused():
    for text in (LOOP, TENSOR):
        assert count_flops(main_function(module(text)), Sizes()) == 2 * 6 * 50
    with pytest.raises(ExecutionError, match="too large to execute after each pass: 6.0e[+]02 float operations"):
        Checker(module(TENSOR), max_flops=500)


def test_inputs_are_of_the_types_and_repeatable():
    types = module(
        TENSOR.replace("%x: tensor<6x50xf32>", "%x: tensor<6x50xf32>, %i: tensor<9xi64>")
    ).body.block.first_op
    types = types.function_type.inputs  # pyright: ignore
    a, b = make_inputs(types, 1), make_inputs(types, 1)
    assert a[1].dtype == np.int64
    assert set(a[1]) <= {0, 1, 2, 3}
    np.testing.assert_array_equal(a[0], b[0])
    assert np.any(make_inputs(types, 2)[0] != a[0])


def test_tolerance():
    real = np.array([1.0, 2.0, np.inf])
    first = real.astype(np.float32)
    assert within(first, first, real, 1).all()
    assert within(np.array([1 + 2e-7, 2, np.inf], np.float32), first, real, 1).all()
    assert list(within(np.array([1 + 1e-5, 2, np.nan], np.float32), first, real, 1)) == [False, True, False]


RACE = KERNEL.replace(
    "  %r = kernel.shuffle_registers %a5",
    """  %b = kernel.shared at 0 : memref<32xf32, "shared">
  %c31 = arith.constant 31 : index
  %m = arith.subi %c31, %t : index
  kernel.store %a5, %b[%t] : memref<32xf32, "shared">, vector<1xf32>
  BARRIER
  %a6 = kernel.load %b[%m] : memref<32xf32, "shared"> -> vector<1xf32>
  %r = kernel.shuffle_registers %a6""",
).replace(" warps 1 {", " warps 1 shared 128 {")


def test_races_count_once_barriers_are_placed():
    bare, guarded = module(RACE.replace("BARRIER", "")), module(RACE.replace("BARRIER", "kernel.barrier"))
    checker = Checker(module(TENSOR))
    checker.after("to-kernel", bare)
    checker.after("kernel-insert-barriers", guarded)
    with pytest.raises(ExecutionError, match="after pass spoil: race in k0"):
        checker.after("spoil", bare)
    with pytest.raises(ExecutionError, match="after pass kernel-insert-barriers: race"):
        Checker(module(TENSOR)).after("kernel-insert-barriers", bare)


SOFTMAX = """
func.func @main(%x: tensor<6x50xf32>) -> tensor<6x50xf32> {
  %m = tensor.reduce max %x over [1] : tensor<6x50xf32> -> tensor<6xf32>
  %b = tensor.index_map %m[d0] : tensor<6xf32> -> tensor<6x50xf32>
  %d = arith.subf %x, %b : tensor<6x50xf32>
  %e = math.exp %d : tensor<6x50xf32>
  %s = tensor.reduce add %e over [1] : tensor<6x50xf32> -> tensor<6xf32>
  %t = tensor.index_map %s[d0] : tensor<6xf32> -> tensor<6x50xf32>
  %y = arith.divf %e, %t : tensor<6x50xf32>
  func.return %y : tensor<6x50xf32>
}
"""


def test_a_lost_guard_against_overflow_is_seen():
    """A softmax with a wrong reference value is right for small inputs, so the check uses large ones too."""
    wrong = SOFTMAX.replace("reduce max", "reduce min")
    with pytest.raises(
        ExecutionError, match="pass p changed the answer for large inputs: result 0 at .* is nan instead"
    ):
        Checker(module(SOFTMAX)).after("p", module(wrong))


def test_a_program_may_start_at_the_kernel_level():
    bare, guarded = module(RACE.replace("BARRIER", "")), module(RACE.replace("BARRIER", "kernel.barrier"))
    checker = Checker(bare)
    assert [a.shape for a in checker.inputs] == [(6, 50)]
    checker.after("kernel-insert-barriers", guarded)
    with pytest.raises(ExecutionError, match="pass p changed the answer in the exact domain"):
        checker.after("p", module(RACE.replace("BARRIER", "kernel.barrier").replace("by 4 :", "by 2 :")))
