"""Printed CUDA in the emulator against the IR in the simulator: every operation on every type, and hostile names.

The emulator and the simulator share no code.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from mutation.hopper_mutants import SUBJECTS
from support.hopper_running import allocated
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cpp.device import HELPERS
from deplodock.backend.cpp.writer import HELPERS_MARK, KERNELS_MARK, RESERVED, Names, sanitise
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import run_cuda_on_cpu
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.interpreter.domains import BINARY, INTEGER, UNARY
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import CompileError
from deplodock.passes.pass_manager import run_passes, verify_module
from deplodock.passes.pipelines import parse_passes

DTYPES = {
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "i1": np.bool_,
}
N = 128
"""Elements of every buffer: 32 lanes with 4 registers each."""


def parse(text: str, passes: str = "") -> ModuleOp:
    ctx = make_context()
    module = parse_module(ctx, text, "test.mlir")
    verify_module(module)
    run_passes(ctx, module, parse_passes(passes) if passes else ())
    return module


def program(arguments: dict[str, str], results: list[str], body: str, passes: str = "") -> ModuleOp:
    """Returns a module with a one-warp kernel on buffers of N elements.

    Args:
        arguments: element type of each argument by name. The body finds the loaded argument `x` in `%r_x`.
        results: element type of each result.
        body: IR text of the kernel's body.
        passes: pipeline to run on the module.
    """
    buffers = [f"%{name}: memref<{N}x{t}>" for name, t in arguments.items()]
    buffers += [f"%out{i}: memref<{N}x{t}>" for i, t in enumerate(results)]
    types = ", ".join(f"memref<{N}x{t}>" for t in [*arguments.values(), *results])
    names = ", ".join([f"%{name}" for name in arguments] + [f"%out{i}" for i in range(len(results))])
    lines = [
        f"kernel.func @k({', '.join(buffers)}) grid [1] warps 1 {{",
        "%lane = kernel.id lane",
        "%four = payload.constant 4 : index",
        "%at = arith.muli %lane, %four : index",
    ]
    for name, t in arguments.items():
        load = f"kernel.load %{name}[%at] regs [[1], [2]] : memref<{N}x{t}> -> vector<4x{t}>"
        lines.append(f"%r_{name} = {load}")
    lines += [body, "}", f"func.func @main({', '.join(buffers)}) {{"]
    lines += [f"kernel.launch @k({names}) : {types}", "func.return", "}"]
    return parse("\n".join(lines), passes)


def store(value: str, number: int, t: str) -> str:
    return f"kernel.store {value}, %out{number}[%at] regs [[1], [2]] : memref<{N}x{t}>, vector<4x{t}>"


def compare(module: ModuleOp, arguments: list[np.ndarray], rtol: float = 0.0) -> None:
    """Asserts that the simulator and the emulator compute the same results, within `rtol` for floats."""
    expected, report = simulate(module, arguments)
    report.raise_errors()
    found, findings = run_cuda_on_cpu(print_cuda(module), make_plan(module), arguments, seeds=(0,))
    assert not findings, "\n".join(map(str, findings))
    assert len(found) == len(expected)
    for number, (f, e) in enumerate(zip(found, expected, strict=True)):
        f, e = np.asarray(f).reshape(-1), np.asarray(e).reshape(-1)
        assert f.dtype == e.dtype
        if rtol and f.dtype.kind in "fV":
            np.testing.assert_allclose(f.astype(float), e.astype(float), rtol=rtol, atol=rtol, err_msg=f"{number}")
        else:
            np.testing.assert_array_equal(f, e, err_msg=f"result {number}")


def floats(dtype: type, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=N) * 3
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 2.5, -0.5]
    values[: len(special)] = special if seed else special[::-1]
    return values.astype(dtype)


def integers(dtype: type, seed: int) -> np.ndarray:
    info = np.iinfo(dtype)
    values = np.random.default_rng(seed).integers(info.min, info.max, N, dtype, endpoint=True)
    values[:4] = [info.max, info.min + 1, 7, -3]
    return values


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_float_operations(t: str) -> None:
    lines, names = [], [n for n in (*UNARY, *BINARY) if t == "f32" or n != "payload.round_tf32"]
    for number, name in enumerate(names):
        operands = "%r_x" if name in UNARY else "%r_x, %r_y"
        lines += [f"%v{number} = {name} {operands} : vector<4x{t}>", store(f"%v{number}", number, t)]
    lines = [line.replace("math.fpowi", "math.powf") for line in lines]
    x, y = floats(DTYPES[t], 0), floats(DTYPES[t], 1)
    with np.errstate(all="ignore"):
        module = program({"x": t, "y": t}, [t] * len(names), "\n".join(lines))
        compare(module, [x, y], rtol=3e-6 if t == "f32" else 1e-12)


@pytest.mark.parametrize("t", ["i64", "i32", "i16", "i8"])
def test_integer_operations(t: str) -> None:
    names = [n for n in INTEGER if n != "arith.ceildivsi"]
    shifts = ("arith.shli", "arith.shrsi", "arith.shrui")
    lines = [f"%three = payload.constant 3 : vector<4x{t}>"]
    for number, name in enumerate(names):
        operands = "%r_x, %three" if name in shifts else "%r_x, %r_y" if name != "math.absi" else "%r_x"
        lines += [f"%v{number} = {name} {operands} : vector<4x{t}>", store(f"%v{number}", number, t)]
    x, y = integers(DTYPES[t], 0), integers(DTYPES[t], 1)
    y[y == 0] = 1
    with np.errstate(all="ignore"):
        compare(program({"x": t, "y": t}, [t] * len(names), "\n".join(lines)), [x, y])


def test_truth_values() -> None:
    names = [f"arith.{n}" for n in "andi ori xori addi muli maxsi minsi".split()]
    lines = []
    for number, name in enumerate(names):
        lines += [f"%v{number} = {name} %r_x, %r_y : vector<4xi1>", store(f"%v{number}", number, "i1")]
    x, y = np.arange(N) % 2 == 1, np.arange(N) % 4 >= 2
    compare(program({"x": "i1", "y": "i1"}, ["i1"] * len(names), "\n".join(lines)), [x, y])


@pytest.mark.parametrize("t", ["f32", "f64", "i64", "i32", "i8", "i1"])
def test_comparison_and_selection(t: str) -> None:
    predicates = ["eq", "ne", "lt", "le", "gt", "ge"]
    lines = []
    for number, predicate in enumerate(predicates):
        lines += [
            f"%c{number} = payload.cmp {predicate} %r_x, %r_y : vector<4x{t}>",
            f"%s{number} = payload.select %c{number}, %r_x, %r_y : vector<4x{t}>",
            store(f"%c{number}", 2 * number, "i1"),
            store(f"%s{number}", 2 * number + 1, t),
        ]
    make = floats if t[0] == "f" else integers
    x, y = (np.arange(N) % 2 == 1, np.arange(N) % 4 >= 2) if t == "i1" else (make(DTYPES[t], 0), make(DTYPES[t], 1))
    y[20:40] = x[20:40]
    compare(program({"x": t, "y": t}, ["i1", t] * len(predicates), "\n".join(lines)), [x, y])


@pytest.mark.parametrize("source", DTYPES)
def test_casts(source: str) -> None:
    lines = []
    for number, target in enumerate(DTYPES):
        lines.append(f"%v{number} = payload.cast %r_x : vector<4x{source}> -> vector<4x{target}>")
        lines.append(store(f"%v{number}", number, target))
    x = np.linspace(-90, 90, N)
    if source == "i1":
        x = np.arange(N) % 3 == 0
    elif source[0] == "i":
        x = integers(DTYPES[source], 0)
    with np.errstate(all="ignore"):
        compare(program({"x": source}, list(DTYPES), "\n".join(lines)), [x.astype(DTYPES[source])])


@pytest.mark.parametrize("t", ["bf16", "f16"])
def test_rounding_to_storage(t: str) -> None:
    """Conversions from f32: halfway cases, subnormals, overflow and infinities."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=N) * 2.0 ** rng.integers(-30, 18, N)).astype(np.float32)
    x[:10] = [np.inf, -np.inf, 65504, 65519.99, 65520, -65520, 1 + 2**-8, 1 + 3 * 2**-8, 2**-25, 6.1e-5]
    x[10:12] = [1 + 2**-11, 2**-24 * 1.5]
    body = f"%n = payload.cast %r_x : vector<4xf32> -> vector<4x{t}>\n{store('%n', 0, t)}\n"
    body += f"%w = payload.cast %n : vector<4x{t}> -> vector<4xf32>\n{store('%w', 1, 'f32')}"
    with np.errstate(all="ignore"):
        compare(program({"x": "f32"}, [t, "f32"], body), [x])


@pytest.mark.parametrize("t", ["f32", "f64", "i64", "i32", "i8", "i1"])
def test_folds_and_butterflies(t: str) -> None:
    kinds = ["add", "mul", "max", "min"] + ([] if t[0] == "f" else ["and", "or", "xor"])
    combine = {"add": "addf", "mul": "mulf", "max": "maximumf", "min": "minimumf"}
    if t[0] == "i":
        combine = {
            "add": "addi",
            "mul": "muli",
            "max": "maxsi",
            "min": "minsi",
            "and": "andi",
            "or": "ori",
            "xor": "xori",
        }
    lines, results = [], 0
    for kind in kinds:
        for bits, left, back in (([0], 2, "0, 0, 1, 1"), ([1], 2, "0, 1, 0, 1"), ([0, 1], 1, "0, 0, 0, 0")):
            v = f"{results}"
            lines.append(
                f"%{v}0 = kernel.reduce_registers {kind} %r_x over {bits} : vector<4x{t}> -> vector<{left}x{t}>"
            )
            lines.append(f"%p{v} = kernel.shuffle_registers %{v}0 from [{back}] : vector<{left}x{t}> -> vector<4x{t}>")
            value = f"%p{v}"
            for mask in (16, 8, 1, 2, 4):
                lines.append(f"%s{v}_{mask}a = kernel.shuffle_xor {value} by {mask} : vector<4x{t}>")
                lines.append(f"%t{v}_{mask}a = arith.{combine[kind]} {value}, %s{v}_{mask}a : vector<4x{t}>")
                value = f"%t{v}_{mask}a"
            lines += [store(f"%p{v}", results, t), store(value, results + 1, t)]
            results += 2
    x = np.random.default_rng(0).integers(0, 2, N) == 1 if t == "i1" else np.arange(N) % 7 - 3
    with np.errstate(all="ignore"):
        compare(program({"x": t}, [t] * results, "\n".join(lines)), [x.astype(DTYPES[t])], rtol=1e-6)


def test_carried_values_change_places() -> None:
    """Values that a loop carries may be swapped, permuted, read after their next value, and yielded twice."""
    body = """
    %0 = payload.constant 0 : index
    %1 = payload.constant 1 : index
    %n = payload.constant 5 : index
    %c = payload.constant 0.5 : vector<4xf32>
    %i = payload.constant 1.0 : vector<1xf32>
    %a, %b, %d, %e, %s, %u = scf.for %k = %0 to %n step %1
        iter_args(%pa = %r_x, %pb = %r_y, %pd = %c, %pe = %r_x, %ps = %i, %pu = %i)
        -> (vector<4xf32>, vector<4xf32>, vector<4xf32>, vector<4xf32>, vector<1xf32>, vector<1xf32>) {
      %sum = arith.addf %pd, %pa : vector<4xf32>
      %late = arith.mulf %pd, %sum : vector<4xf32>
      %turned = kernel.shuffle_registers %pe from [1, 2, 3, 0] : vector<4xf32> -> vector<4xf32>
      %swapped = kernel.shuffle_registers %late from [2, 3, 0, 1] : vector<4xf32> -> vector<4xf32>
      %both = arith.addf %swapped, %late : vector<4xf32>
      %mixed = arith.subf %both, %turned : vector<4xf32>
      %half = arith.mulf %mixed, %c : vector<4xf32>
      %one = kernel.reduce_registers add %half over [0, 1] : vector<4xf32> -> vector<1xf32>
      %ns = arith.addf %ps, %one : vector<1xf32>
      %nu = arith.subf %pu, %ps : vector<1xf32>
      scf.yield %pb, %pa, %half, %turned, %nu, %ns
          : vector<4xf32>, vector<4xf32>, vector<4xf32>, vector<4xf32>, vector<1xf32>, vector<1xf32>
    }
    %sv = kernel.shuffle_registers %s from [0, 0, 0, 0] : vector<1xf32> -> vector<4xf32>
    %uv = kernel.shuffle_registers %u from [0, 0, 0, 0] : vector<1xf32> -> vector<4xf32>
    """
    body += "\n".join(store(v, i, "f32") for i, v in enumerate(["%a", "%b", "%d", "%e", "%sv", "%uv", "%r_x"]))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=N).astype(np.float32), rng.normal(size=N).astype(np.float32)
    compare(program({"x": "f32", "y": "f32"}, ["f32"] * 7, body), [x, y], rtol=1e-4)


@pytest.mark.parametrize(
    "reader",
    ["%w = arith.addf %p, %n : vector<4xf32>", "%w = arith.addf %n, %late : vector<4xf32>"],
    ids=["behind its successor", "renumbered"],
)
def test_a_carried_value_that_is_still_read_keeps_its_place(reader: str) -> None:
    body = f"""
    %0 = payload.constant 0 : index
    %1 = payload.constant 1 : index
    %k3 = payload.constant 3 : index
    %a, %b = scf.for %k = %0 to %k3 step %1 iter_args(%p = %r_x, %q = %r_y) -> (vector<4xf32>, vector<4xf32>) {{
      %turned = kernel.shuffle_registers %p from [2, 3, 0, 1] : vector<4xf32> -> vector<4xf32>
      %late = arith.mulf %turned, %r_x : vector<4xf32>
      %n = arith.mulf %p, %r_x : vector<4xf32>
      {reader}
      %o = arith.mulf %w, %q : vector<4xf32>
      scf.yield %n, %o : vector<4xf32>, vector<4xf32>
    }}
    """
    body += "\n".join(store(v, i, "f32") for i, v in enumerate(["%a", "%b", "%r_x"]))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=N).astype(np.float32), rng.normal(size=N).astype(np.float32)
    compare(program({"x": "f32", "y": "f32"}, ["f32"] * 3, body), [x, y], rtol=1e-5)


@pytest.mark.parametrize("t", ["f32", "i32", "index"])
def test_nested_expressions_keep_their_grouping(t: str) -> None:
    """Operations without a name of their own print as one nested expression, with parentheses where C++ needs them."""
    suffix, divide = ("f", "divf") if t == "f32" else ("i", "divsi")
    names = [f"{n}{suffix}" for n in ("add", "sub", "mul")] + [divide]
    names += [] if t == "f32" else ["andi", "ori", "xori", "shli"]
    e = "i32" if t == "index" else t
    lines, results = [f"%b = payload.cast %r_y : vector<4x{e}> -> vector<4x{t}>"], 0
    lines += [f"%a = payload.cast %r_x : vector<4x{e}> -> vector<4x{t}>", f"%c = payload.constant 3 : vector<4x{t}>"]
    lines = [line.replace("constant 3", "constant 3.0") if t == "f32" else line for line in lines]
    for outer in names:
        for inner in names:
            for left in (True, False):
                n = 10 * results
                if outer == divide and not left and t != "f32":
                    continue  # some of the divisors are 0
                first = f"%{n} = arith.{inner} %a, %c : vector<4x{t}>"
                operands = f"%{n}, %c" if left or outer == "shli" else f"%c, %{n}"
                second = f"%{n + 1} = arith.{outer} {operands} : vector<4x{t}>"
                third = f"%{n + 2} = arith.sub{suffix} %b, %{n + 1} : vector<4x{t}>"
                last = f"%{n + 3} = payload.cast %{n + 2} : vector<4x{t}> -> vector<4x{e}>"
                lines += [" ".join([first, second, third, last]), store(f"%{n + 3}", results, e)]
                results += 1
    x = (np.arange(N) % 5 + 1).astype(DTYPES[e])
    if t == "f32":
        x += np.float32(0.37)
    compare(program({"x": e, "y": e}, [e] * results, "\n".join(lines)), [x, x * 3], rtol=1e-6)


def test_accumulators_in_nested_loops() -> None:
    """An accumulator is carried through two loops. An initial value that is read later is not overwritten."""
    body = """
    %0 = payload.constant 0 : index
    %1 = payload.constant 1 : index
    %n = payload.constant 3 : index
    %h = kernel.shuffle_registers %r_x from [0, 1] : vector<4xf32> -> vector<2xf32>
    %g = kernel.shuffle_registers %r_x from [2, 3] : vector<4xf32> -> vector<2xf32>
    %c = scf.for %k = %0 to %n step %1 iter_args(%p = %r_y) -> (vector<4xf32>) {
      %q = arith.mulf %p, %r_x : vector<4xf32>
      %r = scf.for %l = %0 to %n step %1 iter_args(%o = %q) -> (vector<4xf32>) {
        %m = kernel.outer_fma %h, %g, %o rows [1] cols [0] : vector<2xf32>, vector<2xf32>, vector<4xf32>
        scf.yield %m : vector<4xf32>
      }
      scf.yield %r : vector<4xf32>
    }
    %z = kernel.outer_fma %g, %h, %c rows [0] cols [1] : vector<2xf32>, vector<2xf32>, vector<4xf32>
    """
    body += "\n".join(store(v, i, "f32") for i, v in enumerate(["%c", "%z", "%r_y"]))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=N).astype(np.float32), rng.normal(size=N).astype(np.float32)
    compare(program({"x": "f32", "y": "f32"}, ["f32"] * 3, body), [x, y], rtol=1e-5)


HOSTILE = [
    '"; system("rm -rf ~"); //',
    "*/ #include </etc/passwd> /*",
    "x\\\n#define float double",
    "k0",
    "threadIdx",
    "float",
    "__asm__",
    "naïve",
    "??/\n",
    "0x",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_in_comments(name: str) -> None:
    minted = Names().mint(name)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", minted)
    assert minted not in RESERVED
    comment = sanitise(name)
    assert comment.isascii()
    assert comment.isprintable()
    assert not any(mark in comment for mark in ("*/", "/*", "//", "\\", "??"))


def test_hostile_symbols_attributes_and_places() -> None:
    """A symbol, attribute or file name with comment ends and newlines cannot change the code of a kernel."""
    text = """kernel.func @{symbol}(%{value}: memref<32xf32>) grid [1] warps 1 attributes {{note = "{note}"}} {{
      %lane = kernel.id lane
      %v = payload.constant 1.0 : vector<1xf32>
      kernel.store %v, %{value}[%lane] : memref<32xf32>, vector<1xf32> loc("{file}":3:4)
    }}"""
    plain = print_cuda(parse(text.format(symbol="k", value="smem", note="n", file="model.py")))
    evil = 'a*/ \\5C x\\0A#include <b> //"'.replace('"', "\\22")
    hostile = print_cuda(parse(text.format(symbol=f'"{evil}"', value="asm", note=evil, file=evil)))
    code = [
        [re.sub(r"\b(smem\d*|asm\d*)\b", "v", line) for line in t.splitlines() if not line.lstrip().startswith("//")]
        for t in (plain, hostile)
    ]
    assert code[0] == code[1]
    for line in hostile.splitlines():
        if line.lstrip().startswith("//"):
            assert not line.endswith("\\")
            assert line.count("//") == 1
            assert "*/" not in line


def test_names_are_unique() -> None:
    names = Names()
    minted = [names.mint(hint) for hint in ["x", "x", "X", "x1", "x", "x_1", None, None, "x1_1", "x1"]]
    assert len(set(minted)) == len(minted)


def test_assembly_only_in_helpers() -> None:
    body = "\n".join(
        f"%m{i} = arith.maximumf %r_x, %r_x : vector<4xf32>\n{store(f'%m{i}', i, 'f32')}" for i in range(2)
    )
    text = print_cuda(program({"x": "f32"}, ["f32"] * 2, body))
    helpers, kernels = text.split(KERNELS_MARK)
    assert helpers.startswith(HELPERS_MARK)
    assert helpers.count("asm(") == 1
    assert "asm" not in kernels
    for helper in HELPERS.values():
        assert "asm" not in helper.host


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            '%v = math.ctpop %r_x : vector<4xi32> "test.use"(%v) : (vector<4xi32>) -> ()',
            "math.ctpop: cannot be printed as C++",
        ),
        (
            '%v = kernel.shared : memref<8xi32, "shared">',
            "expected shared memory with an offset; run kernel-allocate-shared first",
        ),
        ('%v = "test.op"() : () -> vector<4xi32>', "test.op: cannot be printed as C++"),
    ],
)
def test_what_has_no_cuda_is_refused(line: str, reason: str) -> None:
    ctx_text = f"kernel.func @k(%x: memref<{N}xi32>) grid [1] warps 1 {{\n%lane = kernel.id lane\n"
    ctx_text += f"%r_x = kernel.load %x[%lane] regs [[1], [2]] : memref<{N}xi32> -> vector<4xi32>\n{line}\n}}"
    ctx = make_context()
    ctx.allow_unregistered = True
    module = parse_module(ctx, ctx_text, "test.mlir")
    with pytest.raises(CompileError, match=re.escape(reason)) as error:
        print_cuda(module)
    assert error.value.location is not None
    assert error.value.location.startswith("test.mlir:4")


@pytest.mark.parametrize("level", ["torch", "tensor", "loop", "tile"])
def test_other_levels_have_no_cuda(level: str) -> None:
    """`print_cuda` refuses a module above the kernel level, instead of printing a text without kernels."""
    import torch

    from deplodock.frontend.capture.export import capture
    from deplodock.frontend.compilation import Compilation

    module = Compilation(capture(torch.relu, (torch.randn(3),)).module).at(level)
    with pytest.raises(CompileError, match="is above the kernel level"):
        print_cuda(module)


def test_shared_memory_is_declared_once_and_for_all() -> None:
    """All kernels declare the shared-memory array with the same alignment, the largest that any kernel may need."""
    plain = 'kernel.func @k() grid [1] warps 1 { %s = kernel.shared at 0 : memref<64xf32, "shared"> }'
    texts = [print_cuda(allocated(SUBJECTS["no lag"].text())), print_cuda(parse(plain))]
    declared = [set(re.findall(r"extern __shared__ .*;", text)) for text in texts]
    assert declared == [{"extern __shared__ __align__(1024) unsigned char smem[];"}] * 2


def test_accumulators_stay_behind_the_wait() -> None:
    """The wait for wgmma names the accumulators, so that the C++ compiler cannot move their uses before it."""
    text = print_cuda(allocated(SUBJECTS["no lag"].text()))
    assert re.search(r"\bwgmma_wait_for\(\w+\);", text)
