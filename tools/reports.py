"""What the `deplodock` command does and prints, apart from its options: programs, summaries, comparisons, timings."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ..backend.check_each import factor_roundoff
from ..backend.interpreter.running import main_function
from ..dialects.loop import NestOp
from ..dialects.loop.work import Work, nest_work
from ..dialects.shapes.binding import bind_sizes
from ..dialects.support.locations import location_text
from ..dialects.support.printing import stamp_comment
from ..dialects.target import Target, get_target
from ..errors import CompileError, ExecutionError
from ..frontend.api import CompiledFunction
from ..frontend.capture.captured_program import CapturedProgram
from ..frontend.capture.eager_fallback import Fallback, FallbackWarning
from ..frontend.capture.export import capture
from ..frontend.comparison import Difference, compare, describe_tensor, tolerances
from ..frontend.compilation import Compilation, compile_captured
from ..frontend.executors import make_executor
from ..passes.host.horizontal_fusion import parts_of
from ..passes.pass_manager import Observer, PrintChanges, SupportsWrite
from ..passes.planning.choose import Candidate, explain_nest, rank
from ..passes.planning.nest_info import NestInfo
from ..progress import steps
from .dynamic_option import read_dynamic
from .evaluate import Program, evaluate, load_file

if TYPE_CHECKING:
    from ..dialects.kernel import FuncOp


@dataclass
class Loaded:
    """A program that the user named: the Python callable with its inputs, captured, on its way down."""

    program: Program
    captured: CapturedProgram
    compilation: Compilation


def load(
    file: str | None,
    code: str | None,
    target: str,
    seed: int = 0,
    *,
    fallback: Fallback = None,
    dynamic: Sequence[str] = (),
    diffs_to: SupportsWrite | None = None,
    observers: Sequence[Observer] = (),
    **options: Any,
) -> Loaded:
    """Evaluate, seeded, what `-c` or the file says and capture it; `fallback` as for `compile`, without a warning.

    `dynamic` says which sizes vary (`tools/dynamic_option.py`); `diffs_to` gets every pass that changes the IR,
    `observers` look on at all; `options` are those of `compile_captured`.
    """
    if (file is None) == (code is None):
        raise CompileError("give either -c EXPRESSION or a FILE.py")
    torch.manual_seed(seed)
    program = evaluate(code) if code is not None else load_file(str(file))
    with warnings.catch_warnings(), steps("capturing"):
        warnings.simplefilter("ignore", FallbackWarning)
        captured = capture(
            program.function,
            program.args,
            program.kwargs,
            names=program.names,
            place=program.place,
            fallback=fallback,
            dynamic_shapes=read_dynamic(dynamic, program),
        )
    if not captured.updates and all(o.kind == "constant" for o in captured.outputs):
        where = None if program.place is None else f"{program.place[0]}:{program.place[1]}"
        raise CompileError("nothing is computed: the program gives no tensor", location=where)
    looking = [*observers] if diffs_to is None else [*observers, _Diffs(diffs_to)]
    return Loaded(program, captured, compile_captured(captured, target, observers=looking, **options))


class _Diffs(PrintChanges):
    """The diffs without a count after every group of passes."""

    def finish(self, module: Any) -> None:
        self._text = None


def standalone(loaded: Loaded) -> str:
    """One .cu that fills its inputs, runs and checks itself."""
    from ..backend.cuda.standalone import emit_standalone

    compilation = loaded.compilation
    module = compilation.at("kernel")
    return stamp_comment(module) + emit_standalone(module, compilation.at("tensor"), compilation.cuda)


def _predicted(nests: list[NestOp], name: str) -> float | None:
    """Seconds that nests take in one launch, each under its schedule, by the planning model, which is one of GPUs."""
    from ..passes.analysis.nest_schedule import schedule_of
    from ..passes.planning.cost_model import Model

    target = get_target(name)
    if target.lanes == 1:
        return None
    times = [Model(NestInfo(nest), target).predict(schedule_of(nest)) for nest in nests]
    return sum(t.seconds for t in times) - (len(times) - 1) * (target.rates.launch + target.rates.ramp)


def kernels(loaded: Loaded) -> list[dict[str, Any]]:
    """Every kernel with its launch, how often it is launched, and its least work, under its name in the CUDA."""
    from ..backend.cuda.printer import kernel_names
    from ..dialects.kernel import FuncOp

    compilation = loaded.compilation
    launches, names = Counter(launched(loaded)), kernel_names(compilation.at("kernel"))
    functions = [op for op in compilation.at("kernel").walk() if isinstance(op, FuncOp)]
    nests = {f"k{i}": op for i, op in enumerate(op for op in compilation.scheduled().walk() if isinstance(op, NestOp))}

    def parts(f: FuncOp) -> list[NestOp]:
        """The nests that a kernel stands for."""
        return [nests[name] for name in parts_of(f)]

    return [
        {
            "name": names[f.sym_name.data],
            "launches": launches[f.sym_name.data],
            "blocks": " * ".join(map(str, f.factors)) if any(not isinstance(n, int) for n in f.factors) else f.blocks,
            "threads": f.threads,
            "shared_bytes": f.shared.data if f.shared is not None else 0,
            "bytes": w.bytes,
            "flops": w.flops,
            "predicted_seconds": _predicted(parts(f), compilation.target),
        }
        for f in functions
        for w in [reduce(Work.__add__, map(nest_work, parts(f)))]
    ]


def explain(loaded: Loaded) -> str:
    """The schedules that the planner considered for every nest, the fastest first, with what limits each."""
    target, precision = _planned_for(loaded)
    return "\n".join(explain_nest(name, nest, target, precision=precision) for name, nest in _nests(loaded))


def explained(loaded: Loaded) -> dict[str, Any]:
    """The same for programs to read."""
    target, precision = _planned_for(loaded)
    kernels = [
        {
            "name": name,
            "location": location_text(nest),
            "sizes": [str(n) for n in nest.sizes],
            "candidates": [_candidate(c) for c in rank(NestInfo(nest), target, precision)],
        }
        for name, nest in _nests(loaded)
    ]
    return {"target": target.name, "card": target.card, "kernels": kernels}


def _planned_for(loaded: Loaded) -> tuple[Target, str]:
    return get_target(loaded.compilation.target), loaded.compilation.f32_matmul_precision or "ieee"


def _nests(loaded: Loaded) -> Iterator[tuple[str, NestOp]]:
    """The nests of a program with the names of their kernels."""
    nests = [op for op in loaded.compilation.at("loop").walk() if isinstance(op, NestOp)]
    with steps("scheduling", len(nests), "kernels") as step:
        for i, nest in enumerate(nests):
            yield f"k{i}", nest
            step()


def _candidate(c: Candidate) -> dict[str, Any]:
    schedule, p = str(c.schedule), c.prediction
    if p is None:
        return {"schedule": schedule, "refused": c.refused}
    return {"schedule": schedule, "seconds": p.seconds, "limit": p.limit, "blocks": p.blocks, "registers": p.registers}


def launched(loaded: Loaded) -> list[str]:
    """The symbol of the kernel of every launch, in order."""
    from ..backend.cuda.printer import kernel_names
    from ..backend.launch_plan import make_plan

    module = loaded.compilation.at("kernel")
    symbols = {cuda: symbol for symbol, cuda in kernel_names(module).items()}
    return [symbols[x.kernel] for x in make_plan(module).launches]


def summary(loaded: Loaded, whole: bool = True) -> str:
    """The kernels with bytes and FLOPs, what passes declined, the time the passes took, and if it is to be the `whole`
    also every pass by its name."""
    compilation = loaded.compilation
    lines = [f"pipeline: {compilation.pipeline()}"] if whole else []
    for k in kernels(loaded):
        lines.append(
            f"kernel {k['name']}: {k['blocks']} blocks of {k['threads']} threads, {k['shared_bytes']} B shared,"
            f" {_si(k['bytes'])}B, {_si(k['flops'])}FLOP"
            + (f", predicted {k['predicted_seconds'] * 1e6:.1f} us" if k["predicted_seconds"] is not None else "")
            + (f", launched {k['launches']} times" if k["launches"] > 1 else "")
        )
    lines += [str(call) for call in compilation.eager.values()]
    if assumed := _assumed(loaded):
        lines.append(f"bytes, FLOPs and times are those at {assumed}")
    lines += [str(r) for r in compilation.remarks]
    lines.append(f"passes: {len(compilation.seconds)}, {sum(s for _, s in compilation.seconds):.3f} s")
    return "".join(f"{line}\n" for line in lines)


def _assumed(loaded: Loaded) -> str:
    """The values that estimates take for sizes known only at run time: `batch = 512`."""
    from ..dialects.kernel import FuncOp
    from ..dialects.shapes.binding import symbols_of
    from ..dialects.shapes.extents import typical

    functions = [op for op in loaded.compilation.at("kernel").walk() if isinstance(op, FuncOp)]
    symbols = symbols_of([a.type for f in functions for a in f.body.block.args])
    return ", ".join(f"{s} = {typical(s)}" for s in symbols)


def _si(value: float) -> str:
    """`4.19 M` of 4190000."""
    for unit in ("", "k", "M", "G", "T"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} P"


def as_json(loaded: Loaded, level: str, places: bool = False) -> dict[str, Any]:
    """The program at `level` and what `summary` says, for other programs to read."""
    compilation = loaded.compilation
    return {
        "target": compilation.target,
        "pipeline": compilation.pipeline(),
        "level": level,
        "text": compilation.text(level, places),
        "kernels": kernels(loaded),
        "remarks": [str(r) for r in compilation.remarks],
        "left_to_pytorch": [str(call) for call in compilation.eager.values()],
    }


def run(loaded: Loaded, executor: str) -> dict[str, Any]:
    """Run the program and PyTorch on the same inputs; what was run by whom, and how far apart the results are."""
    compilation = loaded.compilation
    compilation.at("kernel")
    chosen = make_executor(executor, compilation)
    arguments = loaded.captured.bind(loaded.program.args, loaded.program.kwargs)
    actual = chosen.run(_apart(loaded.captured, arguments))  # before PyTorch, which may change its arguments in place
    shown = sorted({o.index for o in loaded.captured.outputs if o.kind == "result"})
    facts = {"executor": chosen.name, "why": chosen.why, "kernels": len(launched(loaded))}
    found = [actual[i] for i in shown]
    if not loaded.captured.draws:
        with torch.no_grad():
            expected = loaded.captured.flatten(loaded.program.function(*loaded.program.args, **loaded.program.kwargs))
        against = "PyTorch"
    elif chosen.name == "reference":
        return {**facts, **_uncompared(found, "PyTorch draws other numbers")}
    else:
        reference = make_executor("reference", compilation).run(arguments)
        expected, against = [reference[i] for i in shown], "the reference, because PyTorch draws other numbers"
    allowed = _tolerances(compilation, arguments)
    return {**facts, **_compared(compare(found, expected, [allowed[i] for i in shown]), against)}


def _compared(differences: Sequence[Difference], against: str) -> dict[str, Any]:
    """What was found against something that is right."""
    return {
        "compared_with": against,
        "results": [_result(d) for d in differences],
        "ok": all(d.ok for d in differences),
    }


def _uncompared(found: Sequence[torch.Tensor], why: str) -> dict[str, Any]:
    """What was found of results of the reference, with which all others are compared."""
    results = [{"type": describe_tensor(t), "error": None, "tolerance": None, "ok": None, "reason": ""} for t in found]
    note = f"nothing was compared: {why}, and this is the reference; --executor emulator or simulator compares with it"
    return {"compared_with": None, "results": results, "ok": None, "note": note}


def run_saved(program: CompiledFunction, seed: int) -> dict[str, Any]:
    """Run a program of an artifact on random inputs, and compare it with the reference."""
    torch.manual_seed(seed)
    captured, compilation = program.captured, program.compilation
    leaves = [_random(e) if isinstance(e, torch.Tensor) else e for e in captured.examples]
    args, kwargs = pytree.tree_unflatten(leaves, captured.in_spec)
    arguments = captured.bind(args, kwargs)
    actual = program.executor.run(_apart(captured, arguments))
    facts = {
        "executor": program.executor.name,
        "why": program.executor.why,
        "kernels": sum(op.name == "kernel.func" for op in compilation.at("kernel").ops),
    }
    if program.executor.name == "reference":
        return {**facts, **_uncompared(actual, "an artifact holds nothing of PyTorch")}
    expected = make_executor("reference", compilation).run(arguments)
    return {**facts, **_compared(compare(actual, expected, _tolerances(compilation, arguments)), "the reference")}


def _apart(captured: CapturedProgram, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The arguments, with copies in place of those that the program changes: others are to run on the same."""
    changed = {argument for _, argument in captured.updates}
    return [a.clone() if i in changed else a for i, a in enumerate(arguments)]


def _tolerances(compilation: Compilation, arguments: Sequence[torch.Tensor]) -> list[float]:
    """How far the results for these arguments may be off."""
    module = compilation.at("tensor")
    sizes = bind_sizes(main_function(module), [t.shape for t in arguments])
    return tolerances(module, sizes, factor_roundoff(compilation.at("kernel")))


def _random(example: torch.Tensor) -> torch.Tensor:
    """Floats normal; integers 0, because they may be positions."""
    if example.is_floating_point():
        return torch.randn(example.shape).to(example.dtype)
    return torch.zeros(example.shape, dtype=example.dtype)


def _result(d: Difference) -> dict[str, Any]:
    error = d.error if math.isfinite(d.error) else None  # JSON has no infinity
    return {"type": d.type, "error": error, "tolerance": d.tolerance, "ok": d.ok, "reason": d.reason}


def outcome_text(outcome: dict[str, Any]) -> str:
    """What `run` found, for people."""
    lines = [f"executor: {outcome['executor']} ({outcome['why']}), {outcome['kernels']} kernels"]
    if outcome["compared_with"] is None:
        lines += [f"result {i}: {r['type']}  not compared" for i, r in enumerate(outcome["results"])]
        return "\n".join([*lines, outcome["note"]])
    lines.append(f"compared with {outcome['compared_with']}")
    for i, r in enumerate(outcome["results"]):
        verdict = "ok" if r["ok"] else f"WRONG {r['reason']}".rstrip()
        error = "infinite" if r["error"] is None else f"{r['error']:.2e}"
        lines.append(f"result {i}: {r['type']}  error {error}  tolerance {r['tolerance']:.2e}  {verdict}")
    for name, t in outcome.get("bench", {}).get("seconds", {}).items():
        lines.append(f"{name}: {t * 1e6:.1f} us")
    if note := outcome.get("bench", {}).get("note"):
        lines.append(note)
    return "\n".join(lines)


def bench(loaded: Loaded) -> dict[str, Any]:
    """Device times of eager PyTorch, torch.compile and ours, by CUDA events; without a GPU our predicted time. For the
    target `cpu`: times on this machine."""
    from ..frontend.executors import cuda_missing

    if loaded.compilation.target == "cpu":
        return bench_here(loaded, quick=False)
    if missing := cuda_missing():
        predicted = sum(k["launches"] * k["predicted_seconds"] for k in kernels(loaded))
        moved = sum(k["launches"] * k["bytes"] for k in kernels(loaded))
        note = f"nothing was timed: {missing}. Predicted for {loaded.compilation.target}: {_si(moved)}B moved"
        return {"seconds": {"predicted": predicted}, "bytes": moved, "note": note}
    from ..backend.cuda.runtime.timing import on_device

    program = loaded.program
    args, kwargs = _to_device(program.args), _to_device(program.kwargs)
    function = program.function.cuda() if isinstance(program.function, torch.nn.Module) else program.function
    ours = make_executor("cuda", loaded.compilation)
    arguments = [a.cuda() for a in loaded.captured.bind(program.args, program.kwargs)]
    compiled = torch.compile(function, dynamic=False)
    arms = {
        "eager": lambda: function(*args, **kwargs),
        "torch.compile": lambda: compiled(*args, **kwargs),
        "deplodock": lambda: ours.run(arguments),
    }
    try:
        with torch.no_grad():
            times = on_device(arms)
    except RuntimeError as error:
        raise ExecutionError(" ".join(str(error).split())[:300]) from error
    without = "".join(f"; {name} without: {t.why}" for name, t in times.items() if t.why)
    note = f"median device time of CUDA graphs, arms interleaved{without}"
    return {"seconds": {name: t.median for name, t in times.items()}, "note": note}


def bench_here(loaded: Loaded, quick: bool) -> dict[str, Any]:
    """Times of calls of eager PyTorch, torch.compile and ours on the cores of this machine; those of a `quick` look are
    without torch.compile, which takes long to compile."""
    from ..backend.cpu.timing import on_cores

    program, ours = loaded.program, CompiledFunction(loaded.captured, loaded.compilation)
    functions = {"eager": program.function, "deplodock": ours}
    if not quick:
        functions["torch.compile"] = torch.compile(program.function, dynamic=False)
    arms = {name: partial(function, *program.args, **program.kwargs) for name, function in functions.items()}
    with torch.no_grad():
        times = on_cores(arms, 0.25, 1) if quick else on_cores(arms)
    threads = torch.get_num_threads()
    note = f"median time of a call on this machine, {threads} thread{'s' * (threads > 1)}, arms interleaved"
    return {"seconds": {name: t.median for name, t in times.items()}, "note": note}


def _to_device(values: Any) -> Any:
    """The same arguments with tensors on the GPU."""
    return pytree.tree_map(lambda v: v.cuda() if isinstance(v, torch.Tensor) else v, values)
