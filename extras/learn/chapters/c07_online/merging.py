"""Judges of staged reductions: results in chunks, faults of the rescaling, and loads of each element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter
from xdsl.ir import Operation, SSAValue

from .....backend.check_each import input_types, interpret, make_inputs
from .....backend.interpreter.exact import ExactDomain
from .....backend.interpreter.loop import LoopFunctions
from .....backend.interpreter.payload import PayloadFunctions
from .....backend.interpreter.running import make_domain, storage
from .....dialects import loop, payload
from .....dialects.support.calls import main_function
from .....dialects.support.equivalence import Numbering
from .....dialects.tensor import identity
from ...differences import describe
from ...judges import require_equal
from ...verdicts import Wrong

CHUNKS = (7, 64, 1)
"""Iterations per chunk: chunks that do not divide the range, the whole range of 64, and single elements, which take the
longest."""

_SAMPLES = ((1.5, 2.25, 0.75, 3.0, 1.25, 4.5), (0.5, 3.5, 2.75, 1.75, 5.25, 0.25), (2.5, 1.25, 4.0, 0.5, 3.75, 2.0))
"""Arguments of a rescaling. All are different, so that a result shows which of them it depends on."""


def nest_of(module: ModuleOp) -> loop.NestOp:
    """Returns the only nest of a program. Raises Wrong if there is not exactly one."""
    nests = [op for op in main_function(module).body.walk() if isinstance(op, loop.NestOp)]
    if len(nests) != 1:
        raise Wrong(f"expected one loop.nest, but got {len(nests)}")
    return nests[0]


def require_chunks(actual: ModuleOp, expected: ModuleOp) -> None:
    """Requires that two programs are equal, with staged reductions in chunks of each size of `CHUNKS`.

    Args:
        actual: the program of the reader.
        expected: a right program.

    Raises:
        Wrong: the results differ, or a kernel that begins with no elements would be wrong. The message names the fault
            of the rescaling, if there is one.
    """
    nest_of(actual)
    require_equal(actual, expected)
    inputs, exact = make_inputs(input_types(expected)), ExactDomain()
    right = interpret(expected, inputs, exact), interpret(expected, inputs, "real")
    for chunk in CHUNKS:
        for i, (a, e) in enumerate(zip(interpret(actual, inputs, exact, chunk), right[0], strict=True)):
            if not (a == e).all():
                real = interpret(actual, inputs, "real", chunk)[i]
                text = describe(real, right[1][i], a == e, f"result {i}") or f"result {i} differs"
                raise Wrong(f"right in one chunk, but in chunks of {chunk} {text}{rescaling_fault(actual, expected)}")
    for op in actual.walk():
        if isinstance(op, loop.StagedReduceOp):
            _require_empty_start(actual, op)


def _require_empty_start(module: ModuleOp, op: loop.StagedReduceOp) -> None:
    """Requires that a rescaling keeps the results of no elements, with which a kernel begins.

    Args:
        module: the program of the staged reduction.
        op: the staged reduction.

    Raises:
        Wrong: a result changes.
    """
    empty = [float(identity(r.kind.data, r.result.type)) for r in op.stage_ops]
    with np.errstate(all="ignore"):
        results = rescaled(module, op, [*empty, *_SAMPLES[0][: len(empty)]])
    for i, (start, result) in enumerate(zip(empty, results or empty, strict=True)):
        if result != start:
            names = [f"%{a.name_hint or n} = {v:g}" for n, (a, v) in enumerate(zip(op.rescale.block.args, empty))]
            raise Wrong(
                f"right in chunks of {', '.join(map(str, sorted(CHUNKS)))}, but a kernel begins with no elements: for "
                f"{', '.join(names)} the rescaling yields as result {i} {result:g} instead of {start:g}"
            )


def rescaling_fault(actual: ModuleOp, expected: ModuleOp) -> str:
    """Returns a text about the first wrong result of a rescaling, or an empty text.

    Args:
        actual: the program of the reader.
        expected: a right program. The rescalings are compared if both programs have the same kinds of stages.
    """
    pair = [[op for op in m.walk() if isinstance(op, loop.StagedReduceOp)] for m in (actual, expected)]
    if any(len(ops) != 1 for ops in pair):
        return ""
    mine, right = (ops[0] for ops in pair)
    kinds = [[r.kind.data for r in op.stage_ops] for op in (mine, right)]
    if kinds[0] != kinds[1]:
        return ""
    names = [a.name_hint or str(n) for n, a in enumerate(mine.rescale.block.args)]
    rescalings = _Rescalings((actual, expected), (mine, right), names)
    texts = (rescalings.fault(i) for i in range(len(kinds[0])))
    fault = next(filter(None, texts), "")
    return f"; {fault or 'the rescaling is right, so a stage uses a value that is right for the whole range only'}"


@dataclass(frozen=True)
class _Rescalings:
    """Two rescalings of stages of the same kinds, which are compared by their results for some numbers.

    Attributes:
        modules: the programs of the reader and of the solution.
        ops: their staged reductions.
        names: names of the arguments of the reader's rescaling.
    """

    modules: tuple[ModuleOp, ModuleOp]
    ops: tuple[loop.StagedReduceOp, loop.StagedReduceOp]
    names: Sequence[str]

    def _results(self, sample: Sequence[float], i: int) -> tuple[float, float]:
        """Returns result `i` of the reader and of the solution; NaN if it cannot be computed."""
        pairs = zip(self.modules, self.ops, strict=True)
        mine, right = (rescaled(m, op, sample[: len(self.names)]) for m, op in pairs)
        return (mine or [math.nan] * len(self.names))[i], (right or [math.nan] * len(self.names))[i]

    def fault(self, i: int) -> str:
        """Returns a sentence about result `i`, or an empty text if it is right or cannot be computed."""
        triples = [(s, *self._results(s, i)) for s in _SAMPLES]
        if all(math.isnan(a) or _close(a, e) for _, a, e in triples):
            return ""
        count = len(self.names) // 2
        old, new = f"%{self.names[i]}", f"%{self.names[count + i]}"
        start = f"the rescaling yields as result {i}"
        if all(_close(a, s[i]) for s, a, _ in triples):
            return f"{start} {old} unchanged, although its terms are relative to an earlier result, which has changed"
        if all(_close(a, s[count + i]) for s, a, _ in triples):
            return f"{start} {new}, but it must convert the partial result {old}"
        if all(_close(a * e, s[i] ** 2) for s, a, e in triples):
            return f"{start} {old} times a factor that is upside down: a sum relative to a larger maximum is smaller"
        mine, right = self._used(i)
        if mine != right:
            return f"the rescaling computes result {i} from {_listed(mine)}; it needs {_listed(right)}"
        s, a, e = triples[0]
        values = ", ".join(f"%{n} = {v}" for n, v in zip(self.names, s, strict=False))
        return f"{start} {a:.6g} instead of {e:.6g} for {values}"

    def _used(self, i: int) -> tuple[list[str], list[str]]:
        """Returns the arguments that change result `i` of the reader, and those that change it in the solution."""
        sample = _SAMPLES[0]
        first = self._results(sample, i)
        used: tuple[list[str], list[str]] = [], []
        for n, name in enumerate(self.names):
            changed = self._results([*sample[:n], sample[n] + 0.375, *sample[n + 1 :]], i)
            for names, a, b in zip(used, first, changed, strict=True):
                if not _close(a, b):
                    names.append(f"%{name}")
        return used


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) or "constants only"


def rescaled(module: ModuleOp, op: loop.StagedReduceOp, arguments: Sequence[float]) -> list[float] | None:
    """Returns the results of the rescaling of a staged reduction for some numbers.

    Args:
        module: the program of the staged reduction.
        op: the staged reduction.
        arguments: values of the arguments of its second region.

    Returns:
        the results in float64, or None if the region uses values from outside that are no constants.
    """
    domain = make_domain("real")
    interpreter = Interpreter(module)
    interpreter.register_implementations(PayloadFunctions(domain))
    interpreter.register_implementations(LoopFunctions(domain))
    for value in _outside(op):
        if not isinstance(value.owner, payload.ConstantOp):
            return None
        interpreter.set_values([(value, interpreter.run_op(value.owner, ())[0])])
    types = [a.type for a in op.rescale.block.args]
    values = [domain.constant(v, t) for v, t in zip(arguments, types, strict=True)]
    return [float(r) for r in interpreter.run_ssacfg_region(op.rescale, tuple(values))]


def _outside(op: loop.StagedReduceOp) -> list[SSAValue]:
    """Returns the values that a rescaling uses and does not define."""
    used = {v: None for inner in op.rescale.block.ops for v in inner.operands}
    return [v for v in used if v.owner is not op.rescale.block and not op.is_ancestor(v.owner)]


def loads(module: ModuleOp, argument: int = 0) -> int:
    """Returns how often a nest loads each element of an argument.

    The stages of a staged reduction share a load of the same element, because they run over a chunk together. Other
    reductions are separate loops, so that each of them loads its elements again.

    Args:
        module: a program with one nest.
        argument: number of the argument of `@main`.
    """
    source = main_function(module).body.block.args[argument]
    return sum(_loads_of(op, source) for op in nest_of(module).body.block.ops)


def _loads_of(op: Operation, source: SSAValue) -> int:
    """Returns the number of different loads of `source` in an operation of a nest."""
    stages = op.stage_ops if isinstance(op, loop.StagedReduceOp) else ()
    numbers = Numbering(*[r.body.block.args for r in stages])
    return len({numbers.of(o.result) for o in op.walk() if isinstance(o, loop.LoadOp) and o.source is source})


def require_loads(module: ModuleOp, most: int, argument: int = 0, name: str = "x") -> str:
    """Requires that a nest loads each element of an argument at most `most` times.

    Args:
        module: a program with one nest.
        most: the limit.
        argument: number of the argument of `@main`.
        name: name of the argument in messages.

    Returns:
        a text with the number of loads and bytes.

    Raises:
        Wrong: there are more loads.
    """
    dtype, shape = storage(input_types(module)[argument])
    size, count = dtype.itemsize * math.prod(shape), loads(module, argument)
    if count > most:
        raise Wrong(
            f"the program is right, but loads each element of {name} {_times(count)}; {_times(most)} is enough: "
            f"{size * (count - most)} of {size * count} bytes are read again"
        )
    return f"each element of {name} is loaded {_times(count)} ({size * count} bytes)"


def _times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times")
