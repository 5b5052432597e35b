"""Executes a program after every pass, on the same inputs, and reports the first pass that changed the results.

A version of the program is the module after one pass. The first version below the torch level is the reference. Each
later version is executed three times:

- in the exact domain (`interpreter/exact.py`). The results must be equal bit by bit, which catches every wrong index,
  mask or rescaling;
- in the element types of the program, against float64 results of the reference. The tolerance depends on the rounding
  error of the reference and the length of the reductions;
- on inputs 1024 times as large. The results must be finite where those of the reference are.

Sizes known at run time only are set to small primes, which no tile size divides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
from xdsl.dialects.builtin import Float32Type, MemRefType, ModuleOp
from xdsl.ir import Attribute, Operation

from ..dialects import kernel, loop, tile
from ..dialects.loop.work import count_flops, reduced_terms
from ..dialects.payload import RoundTf32Op, element_type
from ..dialects.shapes.binding import Sizes, sample_sizes
from ..dialects.support.calls import main_function, without_calls
from ..errors import CompileError, ExecutionError
from .dtypes import DTYPES
from .interpreter.domains import Array
from .interpreter.exact import ExactDomain, is_opaque
from .interpreter.running import storage
from .reference import DomainName, run

MAX_FLOPS = 4_000_000_000
"""Limit of float operations for a checked program. More would take longer than about ten seconds per pass."""

LARGE_INPUT_SCALE = 1024.0
"""Factor of the inputs in the overflow check. For example, a softmax that subtracts a wrong maximum is correct on small
inputs and overflows on large ones."""

_CHUNK = 3
"""Iterations per chunk in the second check of staged reductions. It is no power of two, so that the last chunk is
partial."""

_BARRIER_PASS = "kernel-insert-barriers"
"""Pass that inserts barriers and fences. Races are errors after it, and expected before it."""

_RACES = ("race", "fence")
"""Kinds of emulator findings that mean a missing barrier or fence."""


def make_inputs(types: Iterable[Attribute], seed: int = 0, sizes: Sizes | None = None, most: int = 4) -> list[Array]:
    """Returns random arrays of the argument types of a program.

    Args:
        types: tensor, memref or scalar types.
        seed: seed of the random generator.
        sizes: values of the symbols in the types; None if the types have none.
        most: exclusive upper bound of integers. It is small, because integers may be used as indices. Floats are
            normally distributed.
    """
    rng = np.random.default_rng(seed)
    inputs: list[Array] = []
    for t in types:
        dtype, shape = storage(t, sizes)
        if dtype == np.bool_:
            inputs.append(rng.integers(0, 2, shape).astype(np.bool_))
        elif dtype.kind in "iu":
            inputs.append(rng.integers(0, min(most, np.iinfo(dtype).max), shape).astype(dtype))
        else:
            inputs.append(rng.standard_normal(shape).astype(np.float32).astype(dtype))
    return inputs


def _is_float(array: Array) -> bool:
    return array.dtype != np.bool_ and array.dtype.kind not in "iu"


def is_kernel_level(module: ModuleOp) -> bool:
    """Returns true if the program is at the kernel level, where the arguments of `@main` are buffers."""
    return any(isinstance(t, MemRefType) for t in main_function(module).function_type.inputs)


def input_types(module: ModuleOp) -> list[Attribute]:
    """Returns the argument types of `@main`, without the result buffers that are arguments at the kernel level."""
    types = list(main_function(module).function_type.inputs)
    if is_kernel_level(module):
        from .host.launch_plan import make_plan

        return types[: make_plan(module).inputs]
    return types


def interpret(
    module: ModuleOp, inputs: list[Array], domain: DomainName | ExactDomain, chunk: int | None = None
) -> list[Array]:
    """Executes a program in the reference interpreter or, at the kernel level, in the simulator.

    Args:
        module: program at the tensor, loop, tile or kernel level.
        inputs: arrays of the types `input_types(module)`.
        domain: number representation: `typed` for the element types of the program, `real` for float64, `exact` or
            an exact domain for residues.
        chunk: iterations per chunk of a staged reduction, or None to compute each stage over its whole range.
            Ignored at the kernel level.

    Returns:
        The results of `@main`, in the representation of `domain`.

    Raises:
        ExecutionError: if an op cannot be executed, or the simulator reports an error.
    """
    if not is_kernel_level(module):
        return run(module, inputs, domain, chunk=chunk)
    from .simulator import simulate

    results, report = simulate(module, inputs, domain=domain)
    report.raise_errors()
    return results


def is_executable(module: ModuleOp) -> bool:
    """Returns true if the program has no ops of the torch dialect, which the interpreters do not execute."""
    return not any(op.name.startswith("torch.") for op in module.walk())


def reduction_length(module: ModuleOp, sizes: Sizes | None = None) -> int:
    """Returns the number of terms of the longest reduction in the program, at least 1."""
    sizes = sizes or Sizes()
    return max(1, *(reduced_terms(op, sizes) or 1 for op in module.walk()))


TF32_ROUNDED, TF32_CUT = 2.0**-11, 2.0**-10
"""Relative errors of converting f32 to tf32 by rounding to nearest, and by truncation."""


def operand_roundoff(module: ModuleOp) -> float:
    """Returns the largest relative error of converting a tensor core operand from f32 to tf32, or 0 without any.

    It looks at matrix instructions of the tile and kernel levels.
    """
    return max((_roundoff(op) for op in module.walk()), default=0.0)


def _roundoff(op: Operation) -> float:
    if isinstance(op, tile.DotOp) and op.atom is not None and isinstance(element_type(op.lhs.type), Float32Type):
        return TF32_ROUNDED if op.atom.data == "mma" else TF32_CUT
    if isinstance(op, kernel.MmaOp) and isinstance(element_type(op.lhs.type), Float32Type):
        producers = (op.lhs.owner, op.rhs.owner)
        return TF32_ROUNDED if all(isinstance(producer, RoundTf32Op) for producer in producers) else TF32_CUT
    if isinstance(op, tile.DotAsyncOp) and isinstance(element_type(op.lhs.type), Float32Type):
        return TF32_CUT
    return TF32_CUT if isinstance(op, kernel.WgmmaOp) and isinstance(op.element, Float32Type) else 0.0


_UNIT_ROUNDOFF = {
    row.stored: row.roundoff for row in DTYPES.values() if row.stored is not None and row.fraction is not None
}


@dataclass(frozen=True)
class _Answer:
    """Results of the reference, which is the first executable version.

    Fields:
        exact: results in the exact domain.
        real: results in float64.
        typed: results in the element types of the program.
        large: results in the element types, for the inputs scaled by `LARGE_INPUT_SCALE`.
        length: number of terms of the longest reduction.
    """

    exact: list[Array]
    real: list[Array]
    typed: list[Array]
    large: list[Array]
    length: int


class Checker:
    """Compares versions of one program: `Checker(module)`, then `after(pass_name, module)` after each pass.

    At the kernel level the emulator also looks for races, if a host compiler is installed. Races are errors after the
    pass that inserts barriers, and after the first version without a race.

    Args:
        module: program before the first pass. It may be at the torch level, where it is not executed yet.
        seed: seed of the random inputs.
        max_flops: limit of float operations.
        domain: `float` skips the exact domain, for passes that use identities it does not know, such as
            `exp(log(x)) = x`.

    Raises:
        ExecutionError: if the program has more than `max_flops` float operations.
    """

    def __init__(
        self,
        module: ModuleOp,
        seed: int = 0,
        *,
        max_flops: int = MAX_FLOPS,
        domain: Literal["exact", "float"] = "exact",
    ) -> None:
        self.max_flops, self.domain = max_flops, domain
        self.sizes = sample_sizes(main_function(module))
        self.inputs = make_inputs(input_types(module), seed, self.sizes)
        self.large_inputs = [a * np.asarray(LARGE_INPUT_SCALE, a.dtype) if _is_float(a) else a for a in self.inputs]
        self.text = ""
        self.checked = 0
        """Number of versions after the reference that were executed."""
        self.answer: _Answer | None = None
        self.synchronised = False
        self.race_note = ""
        """End of the summary if races were not looked for: the reason."""
        self.operand_error = 0.0
        self.error = self.allowed_error = 0.0
        """Largest difference of the last executed version from float64, and the largest difference that is allowed."""
        self.exact = ExactDomain()
        self.opaque = set[str]()
        self._start(module)

    def _start(self, module: ModuleOp) -> None:
        self.text = str(module)
        if not is_executable(module):
            return
        flops = count_flops(main_function(without_calls(module)), self.sizes)
        if flops > self.max_flops:
            raise ExecutionError(f"too large to execute after each pass: {flops:.1e} float operations; shrink it")
        exact, real, typed = (interpret(module, self.inputs, d) for d in (self.exact, "real", "typed"))
        large = interpret(module, self.large_inputs, "typed")
        self.opaque = {op.name for op in module.walk() if is_opaque(op.name)}
        self.answer = _Answer(exact, real, typed, large, reduction_length(module, self.sizes))

    def summary(self) -> str:
        """Returns a sentence with the number of executed versions and the kinds of checks."""
        if self.answer is None:
            return "nothing was executed: the program never left the torch level"
        how = "exactly, " if self.domain == "exact" else ""
        how += "in its own types against float64, and on inputs 1024 times as large"
        entry = f"{len(self.inputs)} inputs, {len(self.answer.typed)} results"
        if not self.checked:
            return f"none of which changed the program ({entry})"
        done = f"{self.checked} of them changed the program and not its answer: executed {how} ({entry})"
        return done + self.race_note

    def after(self, pass_name: str, module: ModuleOp) -> None:
        """Executes `module`, the program after the pass `pass_name`, if its text changed.

        Raises:
            ExecutionError: if a result differs from the reference.
        """
        text = str(module)
        if text == self.text:
            return
        if self.answer is None:
            self._start(module)
            return
        self.text = text
        self.checked += 1
        self.error = self.allowed_error = 0.0
        self.operand_error = max(self.operand_error, operand_roundoff(module))
        staged = any(isinstance(op, loop.StagedReduceOp) for op in module.walk())
        for chunk in (None, _CHUNK) if staged else (None,):
            how = "" if chunk is None else f", merging chunks of {chunk}"
            if self.domain == "exact":
                exact = self._execute(pass_name, module, self.inputs, self.exact, chunk)
                if any(want.shape != got.shape or np.any(want != got) for want, got in zip(self.answer.exact, exact)):
                    self._refuse_exactly(pass_name, module, exact, chunk, how)
            typed = self._execute(pass_name, module, self.inputs, "typed", chunk)
            for i, (first, real, got) in enumerate(zip(self.answer.typed, self.answer.real, typed, strict=True)):
                if real.dtype != np.float64:
                    _compare(pass_name, i, first, got, got == first, f"in its own type{how}")
                else:
                    self._note_error(got, first, real)
                    same = within(got, first, real, self.answer.length, self.operand_error)
                    _compare(pass_name, i, real, got, same, f"beyond the rounding of {got.dtype}{how}")
            large = self._execute(pass_name, module, self.large_inputs, "typed", chunk)
            for i, (want, got) in enumerate(zip(self.answer.large, large, strict=True)):
                if _is_float(got):
                    fine = ~np.isfinite(want.astype(np.float64)) | np.isfinite(got.astype(np.float64))
                    _compare(pass_name, i, want, got, fine, f"for large inputs{how}")

    def _note_error(self, got: Array, first: Array, real: Array) -> None:
        """Stores the error of a result and its tolerance, if they are the largest of this version."""
        assert self.answer is not None
        g, f = got.astype(np.float64), first.astype(np.float64)
        with np.errstate(invalid="ignore"):
            error = float(np.max(np.abs(g - real), where=np.isfinite(g) & np.isfinite(real), initial=0.0))
        allowed = tolerance(f, real, got.dtype, self.answer.length, self.operand_error)
        if (error, allowed) > (self.error, self.allowed_error):
            self.error, self.allowed_error = error, allowed

    def _refuse_exactly(
        self, pass_name: str, module: ModuleOp, exact: list[Array], chunk: int | None, how: str
    ) -> NoReturn:
        """Raises ExecutionError for results that differ in the exact domain.

        The message shows an element in float64. It names the functions of the program that the exact domain replaces
        by hashes, because identities of these functions cause differences, too.
        """
        assert self.answer is not None
        real = self._execute(pass_name, module, self.inputs, "real", chunk)
        opaque = sorted({op.name for op in module.walk() if is_opaque(op.name)} | self.opaque)
        note = f"; the exact domain knows no laws of {', '.join(opaque)}" if opaque else ""
        note += "; --check-domain float compares floats only"
        for i, (want, got) in enumerate(zip(self.answer.exact, exact, strict=True)):
            values = self.answer.real[i], real[i]
            _compare(pass_name, i, want, got, got == want, f"in the exact domain{how}", values, note)
        raise AssertionError("a result differs")

    def _execute(
        self, pass_name: str, module: ModuleOp, inputs: list[Array], domain: DomainName | ExactDomain, chunk: int | None
    ) -> list[Array]:
        try:
            results = interpret(module, inputs, domain, chunk)
            if domain == "typed" and inputs is self.inputs and is_kernel_level(module):
                self._check_races(module, self.synchronised or pass_name == _BARRIER_PASS)
        except ExecutionError as error:
            error.reason = f"after pass {pass_name}: {error.reason}"
            raise
        assert self.answer is not None
        if len(results) != len(self.answer.typed):
            raise ExecutionError(
                f"after pass {pass_name}: expected {len(self.answer.typed)} results, but got {len(results)}"
            )
        return results

    def _check_races(self, module: ModuleOp, count: bool) -> None:
        """Looks for races in a program at the kernel level with the emulator.

        Args:
            module: program at the kernel level; skipped before shared memory is allocated.
            count: whether a race is an error. Otherwise a version without races makes later races errors.

        Raises:
            ExecutionError: for the first race, if `count` holds.
        """
        from .cuda.printer import print_cuda
        from .emulator import run_cuda_on_cpu
        from .host.compiler import compiler
        from .host.launch_plan import make_plan

        try:
            compiler(emulator=True)
        except CompileError as error:
            self.race_note = f"; races were not looked for: {error.reason}"
            return
        try:
            text = print_cuda(module)
        except CompileError:
            return  # CUDA is printed only after shared memory is allocated.
        races = [r for r in run_cuda_on_cpu(text, make_plan(module), self.inputs, (0,))[1] if r.kind in _RACES]
        if races and count:
            raise ExecutionError(str(races[0]))
        self.synchronised |= not races


def _compare(
    pass_name: str,
    i: int,
    want: Array,
    got: Array,
    same: Any,
    context: str,
    values: tuple[Array, Array] | None = None,
    note: str = "",
) -> None:
    """Raises ExecutionError if an element of a result is wrong.

    Args:
        pass_name: pass that was run last.
        i: number of the result.
        want: result of the reference.
        got: result of the checked version.
        same: mask of the elements that are correct.
        context: part of the message that names the kind of check, such as `in the exact domain`.
        values: both results in float64. The message shows them instead of `want` and `got`.
        note: end of the message.
    """
    if want.shape != got.shape:
        raise ExecutionError(f"pass {pass_name} changed the shape of result {i}: {want.shape} to {got.shape}")
    wrong = [tuple(int(n) for n in at) for at in np.argwhere(~np.asarray(same))]
    if not wrong:
        return
    at, change = wrong[0], f"is {got[wrong[0]]} instead of {want[wrong[0]]}"
    if values is not None:
        at = next((p for p in wrong if _distance(*(float(v[p]) for v in values)) > 1e-9), at)
        old, new = (float(v[at]) for v in values)
        change = f"is {new:.6g} instead of {old:.6g} in float64"
        if _distance(old, new) < 1e-9:
            change = f"differs, although it is {new:.6g} in float64 before and after"
    raise ExecutionError(
        f"pass {pass_name} changed the answer {context}: result {i} at {list(at)} {change}"
        f" ({len(wrong)} of {want.size} elements differ){note}"
    )


def _distance(a: float, b: float) -> float:
    """Returns the relative difference of two numbers, or infinity if they differ and one of them is not finite."""
    if a == b or a != a and b != b:
        return 0.0
    return abs(a - b) / max(abs(a), abs(b)) if math.isfinite(a) and math.isfinite(b) else math.inf


def tolerance(first: Array, real: Array, dtype: Any, length: int, operand_error: float = 0.0) -> float:
    """Returns the largest allowed absolute difference of a result from its float64 value.

    It is four times the largest error of the reference, plus the largest value times the sum of these relative errors:
    rounding of the result, a reduction in another order, and rounding of the operands to tf32.

    Args:
        first: result of the reference in the element types of the program, as float64.
        real: result of the reference in float64.
        dtype: NumPy type of the result.
        length: number of terms of the longest reduction.
        operand_error: relative error of an operand, see `operand_roundoff`.
    """
    finite = np.isfinite(first) & np.isfinite(real)
    with np.errstate(invalid="ignore"):
        scale, first_error = (float(np.max(np.abs(x), where=finite, initial=0.0)) for x in (real, first - real))
    unit = 2.0**-53 if dtype == np.float64 else 2.0**-24
    return 4 * first_error + scale * (
        2 * _UNIT_ROUNDOFF.get(dtype, 2.0**-3) + 4 * math.sqrt(length) * unit + 4 * operand_error
    )


def within(got: Array, first: Array, real: Array, length: int, operand_error: float = 0.0) -> Array:
    """Returns a mask of the elements of a result that are correct.

    A finite element must differ from `real` by at most `tolerance(...)`. NaN and infinities must equal those of
    `first`.

    Args:
        got: result of the checked version.
        first: result of the reference in the element types of the program.
        real: result of the reference in float64.
        length: number of terms of the longest reduction.
        operand_error: relative error of an operand, see `operand_roundoff`.
    """
    g, f = got.astype(np.float64), first.astype(np.float64)
    with np.errstate(invalid="ignore"):
        close = np.abs(g - real) <= tolerance(f, real, got.dtype, length, operand_error)
    return np.where(np.isfinite(f) & np.isfinite(real), close, (g == f) | (np.isnan(g) & np.isnan(f)))
