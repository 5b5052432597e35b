"""Emitter of standalone programs: one `.cu` or `.cpp` file with the kernels and a `main()` that runs and checks them.

`main()` fills the inputs, runs the program and compares the results. A `.cpp` file also times the program.

The inputs are pseudo-random; the same generator is implemented here and in C++ (`values.h`). Their values are exact in
their type. The expected results are computed when the file is emitted, in float64 at the tensor level. The file
contains up to 256 values of each result, and a fingerprint: the sum of all elements times pseudo-random weights. It
detects elements that are wrong, missing or permuted. Integers are compared by a hash of all elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from ...backend.check_each import operand_roundoff, reduction_length, tolerance
from ...backend.cuda.runtime.driver import Encoding, encoding
from ...backend.dtypes import DTYPES
from ...backend.host.launch_plan import Buffer, Launch, LaunchPlan, make_plan
from ...backend.interpreter.exact import mix
from ...backend.reference import run
from ...dialects.shapes.extents import static
from ...errors import CompileError, ExecutionError, UnsupportedError
from ...frontend.compilation import Compilation
from ...target.attribute import on_cores, stamp_comment

SAMPLES = 256
"""Largest number of values of a result that the file contains."""

_BITS = {row.name: row.fraction for row in DTYPES.values() if row.fraction is not None}
"""Float type -> number of bits of a random fraction, which the type represents exactly."""

_C_TYPES = {row.name: row.host or row.c for row in DTYPES.values()}
_DEFAULT_SHARED_LIMIT_BYTES = 48 * 1024
"""Shared memory that a block may use without an attribute of its function (CUDA programming guide)."""


def emit(compilation: Compilation) -> str:
    """Returns the standalone program of a compilation: the emitter `standalone`. Raises as `emit_standalone`."""
    module, cpu = compilation.at("kernel"), on_cores(compilation.target)
    text = compilation.cpp if cpu else compilation.cuda
    return stamp_comment(module) + emit_standalone(module, compilation.at("tensor"), text, cpu)


def emit_standalone(kernel_module: ModuleOp, tensor_module: ModuleOp, text: str, cpu: bool = False) -> str:
    """Returns the standalone program of a printed text.

    Args:
        kernel_module: the program at the kernel level.
        tensor_module: the same program at the tensor level, for the expected results.
        text: CUDA or C++ of `kernel_module`.
        cpu: whether the text is C++ for the CPU.

    Raises:
        ExecutionError: if the reference cannot run the program.
        CompileError: if PyTorch computes a part of the program.
        UnsupportedError: if the program has dynamic sizes.
    """
    plan = make_plan(kernel_module)
    if plan.eager:
        raise CompileError(f"@{plan.eager[0].function} is left to PyTorch, so the program does not stand alone")
    if plan.program is not None:
        raise UnsupportedError("a standalone program has fixed sizes, this one has some that are known only at a call")
    inputs = [make_input(b, i) for i, b in enumerate(plan.input_buffers)]
    with np.errstate(all="ignore"):
        real = run(tensor_module, inputs, "real")
        typed = run(tensor_module, inputs, "typed")
    if len(real) != len(plan.output_buffers):
        raise ExecutionError(f"{len(real)} results at the tensor level, {len(plan.output_buffers)} at the kernel level")
    length, operand_error = reduction_length(tensor_module), operand_roundoff(kernel_module)
    pairs = zip(plan.output_buffers, real, typed, strict=True)
    expected = [_expect(b, r, t, length, operand_error) for b, r, t in pairs]
    tables = _tables(expected)
    if cpu:
        target = _Cpu(kernel_module)
        head = [
            _FOR_CPU.format(flags=" ".join(target.flags)),
            _part("cpu.h"),
            _part("values.h"),
            "}  // namespace host",
        ]
        return "\n".join([*head, text, *tables, *_main(plan, expected, target), ""])
    maps = [_part("tensor_maps.cuh")] if any(x.maps for x in plan.launches) else []
    head = [_FOR_CUDA, _part("cuda.h"), _part("values.h")]
    return "\n".join([*head, text, *maps, *tables, *_main(plan, expected, _Cuda()), ""])


def _part(file: str) -> str:
    """Returns the text of a file of this folder. `tensor_maps.cuh` must follow the kernels, which define TensorMap."""
    return (Path(__file__).parent / file).read_text(encoding="utf-8")


def random_words(stream: int, count: int) -> np.ndarray:
    """Returns the first `count` 64-bit words of a stream of the random generator (SplitMix64 of a counter)."""
    with np.errstate(over="ignore"):
        x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return mix(x, stream * 0xD1B54A32D192ED03 % (1 << 64))


def make_input(buffer: Buffer, stream: int) -> np.ndarray:
    """Returns the contents of an input: fractions in [-1, 1), integers 0 to 3 (they may be indices), or booleans.

    `stream` is the number of the stream of the random generator.
    """
    words = random_words(stream, buffer.elements)
    if buffer.dtype in _BITS:
        values = _fractions(words, _BITS[buffer.dtype]).astype(buffer.numpy_dtype)
    else:
        values = (words >> np.uint64(62)).astype(np.int64)
        values = values > 1 if buffer.dtype == "i1" else values.astype(buffer.numpy_dtype)
    return values.reshape(static(buffer.shape))


def _fractions(words: np.ndarray, bits: int) -> np.ndarray:
    """Returns fractions in [-1, 1) with `bits` bits after the binary point, from random words."""
    half = 1 << bits
    return ((words >> np.uint64(63 - bits)).astype(np.int64) - half).astype(np.float64) / half


@dataclass(frozen=True)
class _Expected:
    """Expected contents of a result.

    Attributes:
        values: expected floats at some positions (`sample_step`).
        tolerance: largest error of a float.
        fingerprint: sum of all finite floats times pseudo-random weights.
        not_finite: number of infinities and NaNs.
        integer_hash: hash of a result of integers, or None for floats.
    """

    values: tuple[float, ...] = ()
    tolerance: float = 0.0
    fingerprint: float = 0.0
    not_finite: int = 0
    integer_hash: int | None = None


def _expect(buffer: Buffer, real: np.ndarray, typed: np.ndarray, length: int, operand_roundoff: float) -> _Expected:
    """Returns the expected contents of a result.

    Args:
        buffer: the result.
        real: result of the reference in float64.
        typed: result of the reference in the type of the buffer.
        length: longest reduction of the program, for the tolerance.
        operand_roundoff: relative rounding error of matmul operands (tf32), for the tolerance.
    """
    if buffer.dtype not in _BITS:
        return _Expected(integer_hash=_hash(typed.reshape(-1)))
    expected, typed_values = real.reshape(-1).astype(np.float64), typed.reshape(-1).astype(np.float64)
    finite = np.isfinite(expected) & np.isfinite(typed_values)
    tolerated = tolerance(typed_values, expected, buffer.numpy_dtype, length, operand_roundoff)
    weights = _fractions(random_words(1 << 20, expected.size), 24)
    finite_values = np.where(finite, expected, 0.0)
    positions = (np.arange(min(expected.size, SAMPLES), dtype=np.int64) * sample_step(expected.size)) % max(
        expected.size, 1
    )
    samples = np.where(finite, expected, typed_values)[positions]
    fingerprint = float(np.sum(finite_values * weights))
    return _Expected(tuple(samples.tolist()), tolerated, fingerprint, int(np.sum(~finite)))


def sample_step(size: int) -> int:
    """Returns the distance of embedded values of a result. It is coprime to the size, so positions do not repeat."""
    step = max(size // SAMPLES, 1) | 1 if size > SAMPLES else 1
    while math.gcd(step, size) > 1:
        step += 1
    return step


def _hash(values: np.ndarray) -> int:
    """Returns a hash of integers that depends on their order: sum of values times odd random weights, modulo 2^64."""
    with np.errstate(over="ignore"):
        weights = random_words(1 << 20, values.size) | np.uint64(1)
        return int(np.sum(values.astype(np.int64).view(np.uint64) * weights, dtype=np.uint64))


def _number(value: float) -> str:
    return repr(value).replace("nan", "NAN").replace("inf", "INFINITY")


def _tables(expected: list[_Expected]) -> list[str]:
    lines = ["", "// --- what the results must be"]
    for i, e in enumerate(expected):
        if not e.values:
            continue
        numbers = [_number(v) for v in e.values]
        rows = [", ".join(numbers[k : k + 6]) for k in range(0, len(numbers), 6)]
        lines += [f"static const double want{i}[] = {{", *(f"  {row}," for row in rows), "};"]
    return lines


class _Cuda:
    """Printer of the parts of `main()` that differ for a GPU."""

    first: tuple[str, ...] = ()
    begin: tuple[str, ...] = ()
    end = ("  must(cudaDeviceSynchronize());", "  bool good = true;")
    last: tuple[str, ...] = ()

    def launch(self, launch: Launch, names: list[str]) -> list[str]:
        """Returns the C++ statements of a launch. `names` are the C++ names of its buffers."""
        grid, threads = (", ".join(map(str, sizes)) for sizes in (launch.blocks, launch.threads))
        encoded = enumerate(launch.maps)
        lines = [f"    const TensorMap map{n} = {_tensor_map(encoding(m), names[m.argument])};" for n, m in encoded]
        arguments = [f"&{p}" for p in names] + [f"(void*)&map{n}" for n in range(len(launch.maps))]
        lines.append(f"    void* arguments[] = {{{', '.join(arguments)}}};")
        if launch.shared > _DEFAULT_SHARED_LIMIT_BYTES:
            attribute = "cudaFuncAttributeMaxDynamicSharedMemorySize"
            lines.append(f"    must(cudaFuncSetAttribute({launch.kernel}, {attribute}, {launch.shared}));")
        call = f"cudaLaunchKernel({launch.kernel}, dim3({grid}), dim3({threads}), arguments, {launch.shared}, 0)"
        return [*lines, f"    must({call});"]


class _Cpu:
    """Printer of the parts of `main()` that differ for a CPU. Small launches run on one core, as in the runtime."""

    first = ("  using namespace host;", '  char message[200] = "";')
    begin = ("  const auto run = [&] {",)
    end = ("  };", "  run();", "  bool good = !*message;", '  if (*message) std::printf("stopped: %s\\n", message);')
    last = ("  measure(run);",)

    def __init__(self, module: ModuleOp) -> None:
        from ...backend.cpu.build import options
        from ...backend.cpu.runtime import CpuPlan

        self.flags = [flag for flag in options("native") if flag not in ("-fPIC", "-shared")]
        self._kernels = CpuPlan.of(module).kernels

    def launch(self, launch: Launch, names: list[str]) -> list[str]:
        """Returns the C++ statements of a launch. `names` are the C++ names of its buffers."""
        blocks = math.prod(launch.blocks)
        threads = "omp_get_max_threads()" if self._kernels[launch.kernel].is_shared(blocks) else "1"
        sizes = ", ".join(map(str, launch.values)) or "0"
        return [
            f"    char* const buffers[] = {{{', '.join(f'(char*){p}' for p in names)}}};",
            f"    const long long sizes[] = {{{sizes}}};",
            f"    {launch.kernel}_grid(buffers, sizes, {blocks}, {threads}, message);",
        ]


def _main(plan: LaunchPlan, expected: list[_Expected], target: _Cuda | _Cpu) -> list[str]:
    names = [f"in{i}" if i < plan.inputs else f"out{i - plan.inputs}" for i in range(plan.arguments)]
    scratch = plan.buffers[plan.arguments :]
    names += [f"scratch{i}" for i in range(len(scratch))]
    lines = ["", "// --- checked program", "int main() {", *target.first]
    for i, b in enumerate(plan.input_buffers):
        bits = f", {_BITS[b.dtype]}" if b.dtype in _BITS else ""
        kind = "fractions" if b.dtype in _BITS else "integers"
        lines.append(f"  {_C_TYPES[b.dtype]}* in{i} = {kind}<{_C_TYPES[b.dtype]}>({i}, {b.elements}{bits});{_note(b)}")
    places = dict(plan.in_place)
    for i, b in enumerate(plan.output_buffers):
        if plan.inputs + i in places:
            lines.append(f"  {_C_TYPES[b.dtype]}* out{i} = in{places[plan.inputs + i]};{_note(b)}")
            continue
        lines.append(f"  {_C_TYPES[b.dtype]}* out{i} = allocate<{_C_TYPES[b.dtype]}>({b.elements});{_note(b)}")
    lines += [f"  char* arena = allocate<char>({plan.arena_bytes});"] if scratch else []
    lines += [f"  char* scratch{i} = arena + {b.offset};{_note(b)}" for i, b in enumerate(scratch)]
    lines += target.begin
    launches: list[str] = []
    for launch in plan.launches:
        launches.append("  {")
        parts = {argument: begin for argument, begin, _ in launch.parts}
        for argument, begin in parts.items():
            launches.append(f"    void* part{argument} = (char*){names[launch.buffers[argument]]} + {begin};")
        buffers = [f"part{n}" if n in parts else names[i] for n, i in enumerate(launch.buffers)]
        launches += [*target.launch(launch, buffers), "  }"]
    lines += [f"  {line}" if target.begin else line for line in launches]
    lines += target.end
    lines += [_check(i, b, e) for i, (b, e) in enumerate(zip(plan.output_buffers, expected, strict=True))]
    lines += ['  std::printf(good ? "PASS\\n" : "FAIL\\n");', *target.last]
    return [*lines, "  return good ? 0 : 1;", "}"]


def _tensor_map(e: Encoding, place: str) -> str:
    extents, strides, box = ("{" + ", ".join(map(str, n)) + "}" for n in (e.extents, e.strides or (0,), e.box))
    return f"tensor_map({e.type}, {len(e.extents)}, {place}, {extents}, {strides}, {box}, {e.swizzle}, {e.promotion})"


def _note(buffer: Buffer) -> str:
    return f"  // {buffer.name}: {buffer.dtype}{list(buffer.shape)}"


def _check(i: int, b: Buffer, e: _Expected) -> str:
    if e.integer_hash is not None:
        return f"  good &= check_integers(out{i}, {b.elements}, {e.integer_hash}ull, {i});"
    values: list[Any] = [f"want{i}" if e.values else "nullptr", len(e.values), sample_step(b.elements), e.tolerance]
    arguments = ", ".join(map(str, [*values, _number(e.fingerprint), e.not_finite]))
    return f"  good &= check_floats(out{i}, {b.elements}, {arguments}, {i});"


_FOR_CUDA = """\
// Generated by deplodock: kernels, and a main() that fills inputs, runs them and checks the results.
// Build it for the architecture it was made for, and run it:
//   nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a -o program FILE.cu"""

_FOR_CPU = """\
// Generated by deplodock: kernels, and a main() that fills inputs, runs them, checks the results and times itself.
// Build it for the processor it was made for, and run it:
//   g++ {flags} -o program FILE.cpp -lm"""
