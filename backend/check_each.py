"""Execute a program after every pass, on the same inputs, and name the first pass that changed the answer.

Exactly, in the exact domain, which structural mistakes cannot slip through; and in the program's own types, against
float64, with a tolerance that comes from the rounding of the first version and the length of the reductions. A third
run, on inputs that are much larger, has to stay finite wherever the first version does. Sizes known at run time are
small primes, which no tile divides.
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
"""Programs with more float operations are not checked: each would take longer than about ten seconds a pass."""

_LOUD = 1024.0
"""By how much inputs are scaled to see whether a version overflows that did not before: a softmax whose maximum is
wrong gives the same answer, until it does."""

_CHUNK = 3
"""Iterations a chunk when staged reductions are checked in pieces; no power of two, so that there is a tail."""

_SYNCHRONISES = "kernel-insert-barriers"
"""The pass after which a kernel may no longer have races; before it, barriers and fences are not there yet."""

_RACES = ("race", "fence")
"""What the emulator finds of a kernel without them."""


def make_inputs(types: Iterable[Attribute], seed: int = 0, sizes: Sizes | None = None, most: int = 4) -> list[Array]:
    """Returns random arguments of some types, where symbols have the values `sizes`: floats normal, integers from 0 to
    below `most` (they may be indices), booleans."""
    rng = np.random.default_rng(seed)
    found: list[Array] = []
    for t in types:
        dtype, shape = storage(t, sizes)
        if dtype == np.bool_:
            found.append(rng.integers(0, 2, shape).astype(np.bool_))
        elif dtype.kind in "iu":
            found.append(rng.integers(0, min(most, np.iinfo(dtype).max), shape).astype(dtype))
        else:
            found.append(rng.standard_normal(shape).astype(np.float32).astype(dtype))
    return found


def _is_float(array: Array) -> bool:
    return array.dtype != np.bool_ and array.dtype.kind not in "iu"


def is_kernel_level(module: ModuleOp) -> bool:
    """Returns true if `@main` works on buffers, as at the kernel level."""
    return any(isinstance(t, MemRefType) for t in main_function(module).function_type.inputs)


def input_types(module: ModuleOp) -> list[Attribute]:
    """Returns the types of the inputs of `@main`; at the kernel level results are arguments, too."""
    types = list(main_function(module).function_type.inputs)
    if is_kernel_level(module):
        from .host.launch_plan import make_plan

        return types[: make_plan(module).inputs]
    return types


def interpreted(
    module: ModuleOp, inputs: list[Array], domain: DomainName | ExactDomain, chunk: int | None = None
) -> list[Array]:
    """Returns the results of a module below the torch level, from the interpreter of its level.

    Args:
        module: program at the tensor, loop, tile or kernel level.
        inputs: arrays of the types of its inputs.
        domain: `typed` for its own types, `real` for float64, or an exact domain.
        chunk: iterations in which staged reductions are computed; None computes them at once.

    Raises:
        ExecutionError: for a finding of the simulator, which runs the kernel level.
    """
    if not is_kernel_level(module):
        return run(module, inputs, domain, chunk=chunk)
    from .simulator import simulate

    results, report = simulate(module, inputs, domain=domain)
    report.raise_errors()
    return results


def is_executable(module: ModuleOp) -> bool:
    """Returns true if the program is below the torch level, which only PyTorch executes."""
    return not any(op.name.startswith("torch.") for op in module.walk())


def reduction_length(module: ModuleOp, sizes: Sizes | None = None) -> int:
    """Returns the number of terms of the longest reduction in the program, at least 1."""
    sizes = sizes or Sizes()
    return max(1, *(reduced_terms(op, sizes) or 1 for op in module.walk()))


TF32_ROUNDED, TF32_CUT = 2.0**-11, 2.0**-10
"""The relative error of an f32 that is rounded to tf32, and of one whose last bits are left out."""


def factor_roundoff(module: ModuleOp) -> float:
    """Returns the largest relative error of an operand that tensor cores take as tf32, at the tile or the kernel
    level."""
    return max((_roundoff(op) for op in module.walk()), default=0.0)


def _roundoff(op: Operation) -> float:
    if isinstance(op, tile.DotOp) and op.atom is not None and isinstance(element_type(op.lhs.type), Float32Type):
        return TF32_ROUNDED if op.atom.data == "mma" else TF32_CUT
    if isinstance(op, kernel.MmaOp) and isinstance(element_type(op.lhs.type), Float32Type):
        factors = (op.lhs.owner, op.rhs.owner)
        return TF32_ROUNDED if all(isinstance(f, RoundTf32Op) for f in factors) else TF32_CUT
    if isinstance(op, tile.DotAsyncOp) and isinstance(element_type(op.lhs.type), Float32Type):
        return TF32_CUT
    return TF32_CUT if isinstance(op, kernel.WgmmaOp) and isinstance(op.element, Float32Type) else 0.0


_UNIT_ROUNDOFF = {row.numpy: row.roundoff for row in DTYPES.values() if row.fraction is not None}


@dataclass(frozen=True)
class _Answer:
    """The results of the first executable version, in three domains."""

    exact: list[Array]
    real: list[Array]
    typed: list[Array]
    loud: list[Array]
    length: int


class Checker:
    """Compares versions of one program: `Checker(module)`, then `after(pass_name, module)` after each pass.

    `seed` picks the inputs. A program at the torch level is not executed; its first version below is what later ones
    are compared with. The `domain` `float` leaves the exact domain out, for passes that use laws that it does not know.
    From the pass that places barriers on, or from the first version without any, the emulator looks for races, where a
    host compiler is there for it.
    Raises ExecutionError for a program with more than `max_flops` operations.
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
        self.loud = [a * np.asarray(_LOUD, a.dtype) if _is_float(a) else a for a in self.inputs]
        self.text = ""
        self.checked = 0
        """Versions after the first that were executed."""
        self.answer: _Answer | None = None
        self.synchronised = False
        self.unjudged = ""
        """Why races were not looked for."""
        self.factors = 0.0
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
        exact, real, typed = (interpreted(module, self.inputs, d) for d in (self.exact, "real", "typed"))
        loud = interpreted(module, self.loud, "typed")
        self.opaque = {op.name for op in module.walk() if is_opaque(op.name)}
        self.answer = _Answer(exact, real, typed, loud, reduction_length(module, self.sizes))

    def summary(self) -> str:
        """Returns one line about the checks."""
        if self.answer is None:
            return "nothing was executed: the program never left the torch level"
        how = "exactly, " if self.domain == "exact" else ""
        how += "in its own types against float64, and on inputs 1024 times as large"
        entry = f"{len(self.inputs)} inputs, {len(self.answer.typed)} results"
        if not self.checked:
            return f"none of which changed the program ({entry})"
        done = f"{self.checked} of them changed the program and not its answer: executed {how} ({entry})"
        return done + self.unjudged

    def after(self, pass_name: str, module: ModuleOp) -> None:
        """Executes `module`, the result of `pass_name`. Raises ExecutionError if its answer differs from the first
        one."""
        text = str(module)
        if text == self.text:
            return
        if self.answer is None:
            self._start(module)
            return
        self.text = text
        self.checked += 1
        self.factors = max(self.factors, factor_roundoff(module))
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
                    same = within(got, first, real, self.answer.length, self.factors)
                    _compare(pass_name, i, real, got, same, f"beyond the rounding of {got.dtype}{how}")
            loud = self._execute(pass_name, module, self.loud, "typed", chunk)
            for i, (want, got) in enumerate(zip(self.answer.loud, loud, strict=True)):
                if _is_float(got):
                    fine = ~np.isfinite(want.astype(np.float64)) | np.isfinite(got.astype(np.float64))
                    _compare(pass_name, i, want, got, fine, f"for large inputs{how}")

    def _refuse_exactly(
        self, pass_name: str, module: ModuleOp, exact: list[Array], chunk: int | None, how: str
    ) -> NoReturn:
        """Raises ExecutionError for a result that differs in the exact domain. The message has its value in float64 and
        the functions of the program whose laws the domain does not know."""
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
            results = interpreted(module, inputs, domain, chunk)
            if domain == "typed" and inputs is self.inputs and is_kernel_level(module):
                self._check_races(module, self.synchronised or pass_name == _SYNCHRONISES)
        except ExecutionError as error:
            error.reason = f"after pass {pass_name}: {error.reason}"
            raise
        assert self.answer is not None
        if len(results) != len(self.answer.typed):
            raise ExecutionError(f"after pass {pass_name}: {len(results)} results, not {len(self.answer.typed)}")
        return results

    def _check_races(self, module: ModuleOp, count: bool) -> None:
        """Raises ExecutionError for a race at the kernel level; if races do not `count` yet, notes whether they do from
        now on."""
        from .cuda.printer import print_cuda
        from .emulator import run_cuda_on_cpu
        from .host.compiler import compiler
        from .host.launch_plan import make_plan

        try:
            compiler(emulator=True)
        except CompileError as error:
            self.unjudged = f"; races were not looked for: {error.reason}"
            return
        try:
            text = print_cuda(module)
        except CompileError:
            return  # shared memory has no offsets yet
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
    what: str,
    values: tuple[Array, Array] | None = None,
    note: str = "",
) -> None:
    """Raises ExecutionError where a result is not the same.

    Args:
        same: of each element, whether `got` may be the result.
        what: where the answer changed, for the message.
        values: the results in float64, to be shown in place of `want` and `got`.
        note: the end of the message.
    """
    if want.shape != got.shape:
        raise ExecutionError(f"pass {pass_name} changed the shape of result {i}: {want.shape} to {got.shape}")
    places = [tuple(int(n) for n in at) for at in np.argwhere(~np.asarray(same))]
    if not places:
        return
    at, change = places[0], f"is {got[places[0]]} instead of {want[places[0]]}"
    if values is not None:
        at = next((p for p in places if _distance(*(float(v[p]) for v in values)) > 1e-9), at)
        old, new = (float(v[at]) for v in values)
        change = f"is {new:.6g} instead of {old:.6g} in float64"
        if _distance(old, new) < 1e-9:
            change = f"differs, although it is {new:.6g} in float64 before and after"
    raise ExecutionError(
        f"pass {pass_name} changed the answer {what}: result {i} at {list(at)} {change}"
        f" ({len(places)} of {want.size} elements differ){note}"
    )


def _distance(a: float, b: float) -> float:
    """Returns the relative difference of two numbers; infinity where only one of them is finite."""
    if a == b or a != a and b != b:
        return 0.0
    return abs(a - b) / max(abs(a), abs(b)) if math.isfinite(a) and math.isfinite(b) else math.inf


def tolerance(first: Array, real: Array, dtype: Any, length: int, factors: float = 0.0) -> float:
    """Returns the allowed distance of results of the type `dtype` from the float64 values `real`: four times the
    largest error of the first version `first`, plus the error of a sum of `length` float32 terms in another order, one
    rounding of the result and one of every operand by `factors` (tf32), relative to the largest value."""
    finite = np.isfinite(first) & np.isfinite(real)
    with np.errstate(invalid="ignore"):
        scale, own = (float(np.max(np.abs(x), where=finite, initial=0.0)) for x in (real, first - real))
    unit = 2.0**-53 if dtype == np.float64 else 2.0**-24
    return 4 * own + scale * (2 * _UNIT_ROUNDOFF.get(dtype, 2.0**-3) + 4 * math.sqrt(length) * unit + 4 * factors)


def within(got: Array, first: Array, real: Array, length: int, factors: float = 0.0) -> Array:
    """Returns where `got` is as close to `real` as `tolerance` allows; NaN and infinities must be where `first` has
    them."""
    g, f = got.astype(np.float64), first.astype(np.float64)
    with np.errstate(invalid="ignore"):
        close = np.abs(g - real) <= tolerance(f, real, got.dtype, length, factors)
    return np.where(np.isfinite(f) & np.isfinite(real), close, (g == f) | (np.isnan(g) & np.isnan(f)))
