"""Run PyTorch's operator database against the compiler, and write `docs/coverage.md`.

    python -m benchmarks.compiler.coverage  # every sample of every operator, five data types (an hour)
    python -m benchmarks.compiler.coverage --samples 4  # four samples of each (minutes)
    python -m benchmarks.compiler.coverage --operators sort cumsum --dtypes float32 -v
    python -m benchmarks.compiler.coverage --dtypes float32 --samples 2 --level cuda  # as CUDA text, on the emulator
    python -m benchmarks.compiler.coverage --dtypes float32 --mode constants  # all tensors but one as constants
    python -m benchmarks.compiler.coverage --dtypes float32 --samples 3 --backward  # gradients, through torch.compile

Every sample is right, or refused with a named reason; the exit status is 1 if one is wrong, crashes or takes over a
minute. `--mode keywords` leaves away one keyword argument of a sample at a time; `--capture export` takes the real
capture in place of a faster one; `--jobs 0` runs everything in this process. `--update`
writes the results (of the operators and data types that ran) to `tests/conformance/results.json`, which the tests hold
against, and the page. `--journal FILE` keeps what was run, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402
from conformance import gradients, opdb, summary  # noqa: E402
from conformance.levels import LEVELS, down_to  # noqa: E402
from conformance.tracing import Capture, Exporter, tracer  # noqa: E402

DTYPES = ("float32", "float16", "bfloat16", "int64", "bool")
_MARKS = ExitStack()
_TRACER: list[Capture] = []


def _start(run: Run) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if not run.backward:  # PyTorch's decompositions are others while a tracer is there
        _TRACER.append(_MARKS.enter_context(tracer()))


@dataclass(frozen=True)
class Run:
    """How the samples of an operator are run."""

    dtype: str
    samples: int | None
    level: str
    mode: opdb.Mode
    capture: str
    backward: bool = False

    @property
    def column(self) -> str:
        """The name under which the results are kept: the data type, and what is not as usual."""
        usual = ("tensor", "arguments", "trace")
        what = "backward" if self.backward else self.mode
        return " ".join([self.dtype, *(v for v in (self.level, what, self.capture) if v not in usual)])


def _run_one(name: str, run: Run) -> list[opdb.Verdict]:
    (op,) = [op for op in opdb.operators() if op.formatted_name == name]
    if run.dtype == "errors":
        return list(opdb.judge_errors(_TRACER[0], op)) if op.error_inputs_func is not None else []
    if run.dtype == "types":
        return list(opdb.judge_types(_TRACER[0], op))
    wanted = getattr(torch, run.dtype)
    if not op.supports_dtype(wanted, "cpu"):
        return []
    if run.backward:
        found = (
            opdb.samples(op, wanted, run.samples, requires_grad=True) if gradients.is_differentiable(op, wanted) else ()
        )
        return [gradients.judge_gradients(op, i, sample, run.level) for i, sample in found]
    capture: Capture = _TRACER[0] if run.capture == "trace" else Exporter()
    found = list(opdb.samples(op, wanted, run.samples, mode=run.mode))
    verdicts: list[opdb.Verdict] = []
    for start in range(0, len(found), BUILT_TOGETHER):
        part = found[start : start + BUILT_TOGETHER]
        verdicts += opdb.judge_all(capture, op, part, down_to(run.level), run.mode)
    return verdicts


BUILT_TOGETHER = 12
"""Samples of an operator that are compiled in one go."""


def _run(names: Sequence[str], run: Run, options: argparse.Namespace) -> Iterator[opdb.Verdict]:
    journal = Journal(options.journal, [run.column, run.samples])
    for name in names:
        yield from journal.found.get(name, [])
    left = [name for name in names if name not in journal.found]
    if not options.jobs:
        _start(run)
        for name in left:
            yield from journal.add(name, _run_one(name, run))
    # What the emulator has compiled stays loaded, so a process does not live long there.
    many = 40 * options.jobs if run.level == "cuda" else len(left)
    while left and options.jobs:
        with ProcessPoolExecutor(options.jobs, initializer=_start, initargs=(run,)) as pool:
            part = [(name, pool.submit(_run_one, name, run)) for name in left[:many]]
            for name, future in part:
                try:
                    verdicts = future.result()
                except BrokenProcessPool:  # it may have been another one: each is run again on its own
                    if many == 1:
                        yield from journal.add(name, [opdb.Verdict(name, 0, "crash", "the process ended")])
                        left.remove(name)
                    many = 1
                    break
                left.remove(name)
                yield from journal.add(name, verdicts)
            else:
                many = 40 * options.jobs if run.level == "cuda" else max(len(left), 1)


class Journal:
    """The verdicts so far, an operator a line, in the file at `path` (None: nowhere); `run` says what is run."""

    def __init__(self, path: Path | None, run: Sequence[object]) -> None:
        self._path, self._run = path, list(run)
        self.found: dict[str, list[opdb.Verdict]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                run_of_line, name, rows = json.loads(line)
                if run_of_line == self._run:
                    self.found[name] = [opdb.Verdict(name, *row) for row in rows]

    def add(self, name: str, verdicts: Sequence[opdb.Verdict]) -> Sequence[opdb.Verdict]:
        """Write down what became of the samples of an operator, and give it back."""
        if self._path is not None:
            rows = [(v.sample, v.kind, v.reason[:300], v.seconds) for v in verdicts]
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([self._run, name, rows]) + "\n")
        return verdicts


def _cell(found: summary.Summary | None) -> str:
    if found is None:
        return ""
    if found.failed:
        return f"**{found.failed} wrong**"
    if not found.refused:
        return "right" if found.right else "–"
    return f"{found.right} of {found.right + found.refused}: {found.reason}" if found.right else found.reason


RANDOM_PROGRAMS = (
    "Random programs, by `python -m fuzz` (with `tests` on the path), at 3491961 and 4b62153, none wrong. On the "
    "reference 10000 (seeds from 800000): 9940 right, 60 refused, 0.02 s each. On the emulator, the four targets in "
    "turn, 8000 (from 600000 and 610000) in two processes: 7978 right, 21 refused, one that read a tensor without "
    "elements and is a test now; 0.06 to 0.11 s each, at most 549 MiB and 700 memory maps. In the simulator, the "
    "targets in turn, 1000 (from 700000): 989 right, 11 refused, 0.05 s each. Most of what was refused were operators "
    "on empty tensors of types that PyTorch has no kernel for; such programs are not drawn any more."
)
"""What the fuzzers found; their runs are recorded by hand."""

WHEN = (
    "Columns of types, `cuda` and `constants` were run at 638807b, in one process each. float32: 18762 samples in 278 "
    "s, at most 0.8 s of the processor's time each and 1147 MiB; `cuda`: 1313 in 104 s, at most 1.6 s and 646 MiB; "
    "`constants`: 6893 in 131 s; the seven other types at most 0.7 s a sample. `keywords` and the calls that PyTorch "
    "refuses were run as a whole at 4fd161d: 51289 samples, at most 1.2 s each, and 696 calls in 5 s. `backward`, "
    "based on 05a6691 (samplers of grids and embedding bags: 7ab8074): 1514 in 1300 s beside other work, at most 13 s "
    "each. "
    "What the other runs found first (two crashes of empty complex results, resizing through a filter in float64) is "
    "mended, and was run again. Ten operators that are refused since, and what PyTorch's database has of "
    "them, were run again: segmented reductions, the Bessel functions J, Y and K, and Ai. Based on 46bc7bb, all "
    "columns but `keywords` and `backward` were run again for these functions, orthogonal polynomials, `igamma`, "
    "`igammac`, `frexp` and `grid_sampler_3d`, which are no longer refused, and, but for `constants`, for "
    "`tensor_split`. Of `backward`, the four operators that were refused and are right in float32 were run again at "
    "4fd161d (`corrcoef`, `cov`, `frexp`, `index_put`)."
)
"""Which commits the results are of; kept by hand."""

COLUMNS = (
    *DTYPES,
    "float64",
    "int32",
    "uint8",
    "float32 cuda",
    "float32 constants",
    "float32 keywords",
    "float32 backward",
)
"""The runs on the page."""

DIFFERENCES = """## Where PyTorch has two answers

Where PyTorch's kernels for the CPU and for CUDA differ, CUDA's answer is taken (read in its sources,
`ATen/native/cuda`; `passes/convert/torch_to_tensor/scalars.py` is the table, `tests/support/scalar_rules.py` the check
of every operator with every type):
- `add`, `sub` and `rsub` of f16 and bf16 with a Python scalar or `alpha`: in f32, rounded once. The CPU rounds the
  scalar and the product first.
- `mul`, `add` and their like of f16 and bf16 with a tensor without dimensions: that is rounded to their type first.
  The CPU keeps its digits.
- `softshrink`: `lambd` is rounded to the tensor's type first. The CPU does so in `hardshrink` only.
- `clamp`, `hardtanh` and `alpha` of f16 with a scalar beyond its range: computed in f32. The CPU refuses it.
- `elu` with an infinite `alpha` at 0: NaN; 0 on the CPU. `gelu` of infinity: infinity; NaN on the CPU.
- `x ** 0.5` of f16 is a square root: NaN for -infinity; infinity on the CPU.
- `fmod` and `remainder` whose quotient is beyond the range: the remainder; NaN in vectors of the CPU, not in scalars.
- `addcmul` of floats is a product and a sum; the CPU fuses them in vectors (one rounding, no infinity between), not in
  scalars.
- `linear`, `bilinear`, `trilinear` and antialiased interpolation by a factor, along a dimension whose size stays, and
  `nearest` of two dimensions along one whose size stays or doubles: the CPU takes the elements as they are or twice,
  CUDA samples them by the factor, unless all sizes stay. The device of the tensors decides.
- `addmm`, `addmv` and `addbmm` with `alpha=0`: the product is not computed, so its NaN does not show, as on CUDA and in
  f32 and f64 on the CPU. `addr` and `baddbmm` compute it (the CPU: `baddbmm` of few elements only).

And where PyTorch is not taken as the judge:
- `multilabel_margin_loss`: as eager PyTorch; PyTorch's own decomposition of it gives another number.
- The least integer divided by -1, whose process PyTorch ends on the CPU, wraps. The median of no integers is refused;
  PyTorch converts NaN.
- A common factor of all terms of a sum, as the inverse sum of softmax, is applied after the sum: the result is infinite
  where the sum without the factor is beyond the range, and where the factor is infinite and PyTorch's terms cancel to
  NaN. PyTorch's fused attention divides after the sum, too.
- Attention adds -infinity to scores that a mask hides, as PyTorch does on the CPU, so their NaN shows, and an infinity
  becomes NaN. With `is_causal` scores of later keys are replaced, as in PyTorch's fused kernels, and no NaN shows.
  Chunks that a comparison of positions masks as a whole are not read.
- `multi_margin_loss`: NaN in a row is NaN in its loss, as in PyTorch's decomposition; its kernels leave such terms out.
- An index outside of its dimension reads zero and writes nothing, where PyTorch raises (on CUDA it stops the device). A
  program compiled with `checked` stops as well; an index that is a constant is refused in every program.
- Variances of huge values: the mean is a sum divided by n, and what is squared is measured from it. PyTorch's kernels
  move a running mean from element to element. For n elements c near the end of the range of f32 (bf16) or f64 they
  differ (`tests/frontend/operators/test_huge_values.py`):
  - All equal, n * c beyond the range: the mean is infinite, `var` and `std` infinite or, in long rows, NaN;
    `layer_norm`, `group_norm` and `batch_norm` NaN. PyTorch gives the mean c and the variance 0; `layer_norm` is 0 on
    CUDA and NaN on the CPU, `group_norm` NaN on the CPU, and on CUDA 0 without weight and bias (with them NaN, where c
    divided by the root of `eps` is beyond the range). `batch_norm` is NaN on both: means are multiplied by counts.
  - All equal, from about 1e25 (f64: 1e168) on, n * c in range: `var` and `std` are 0 or not finite, for the mean is
    rounded; PyTorch's are 0. The normalised values are 0 everywhere, of long rows with us 0 or NaN.
  - Far apart, as c and -c: `var` and `std` are infinite as on CUDA, and the normalised values 0, or NaN where a part of
    the sum is beyond the range. The CPU squares in f64, so its `std` and `batch_norm` of f32 are finite and not 0.
"""
"""Differences between PyTorch's own kernels, and from them; kept by hand."""


def page(results: dict[str, dict[str, summary.Summary]], taken: dict[str, str]) -> str:
    """The coverage page."""
    lines = [
        "# Coverage of PyTorch's operators",
        "",
        f"PyTorch {torch.__version__.partition('+')[0]}, the operators of its own test database with their samples: "
        "captured, lowered to the tensor level, executed by the reference interpreter and compared with eager PyTorch. "
        "`cuda` is the same down to CUDA text, run on the CPU, where values of more than 65536 elements are "
        "left out; `constants` has all tensors but the first as constants of the program, `keywords` leaves away one "
        "keyword argument at a time; `backward` differentiates through torch.compile: both graphs are compiled, "
        "results require gradients where PyTorch's do, and these are compared (of random numbers, only that). "
        "Written by `python -m benchmarks.compiler.coverage --update`, and with `--dtypes float32 --samples 2 --level "
        "cuda`, `--dtypes errors` and `--samples 3 --backward`.",
        "",
        WHEN,
        "",
        *_errors(results.get("errors", {})),
        "| | " + " | ".join(results := {c: results[c] for c in COLUMNS if c in results}) + " |",
        "|---|" + "---|" * len(results),
        "| samples of each operator | " + " | ".join(taken.get(c, "all") for c in results) + " |",
    ]
    rows: dict[str, list[int]] = {
        "samples": [],
        "operators": [],
        "fully right": [],
        "right in part": [],
        "refused": [],
        "wrong": [],
    }
    for by_operator in results.values():
        values = list(by_operator.values())
        rows["samples"].append(sum(s.right + s.refused + s.failed for s in values))
        rows["operators"].append(len(values))
        rows["fully right"].append(sum(bool(s.right) and not s.refused and not s.failed for s in values))
        rows["right in part"].append(sum(bool(s.right) and bool(s.refused) for s in values))
        rows["refused"].append(sum(not s.right and bool(s.refused) for s in values))
        rows["wrong"].append(sum(bool(s.failed) for s in values))
    lines += [f"| {name} | " + " | ".join(map(str, counts)) + " |" for name, counts in rows.items()]
    reasons = Counter(s.reason for s in results[next(iter(results))].values() if s.refused)
    lines += ["", f"Reasons of refusal ({next(iter(results))}): "]
    lines[-1] += ", ".join(f"{name} {count}" for name, count in reasons.most_common()) + "."
    lines += ["", RANDOM_PROGRAMS, "", DIFFERENCES.rstrip()]
    lines += ["", "## Operators", "", "| operator | " + " | ".join(results) + " |", "|---|" + "---|" * len(results)]
    names = sorted({name for by_operator in results.values() for name in by_operator})
    for name in names:
        lines.append(f"| {name} | " + " | ".join(_cell(r.get(name)) for r in results.values()) + " |")
    return "\n".join(lines) + "\n"


def _errors(found: dict[str, summary.Summary]) -> list[str]:
    refused, captured = sum(s.refused for s in found.values()), sum(s.right for s in found.values())
    if not found:
        return []
    text = f"Of {refused + captured} calls that PyTorch refuses, {refused} are refused with a diagnostic at capture; "
    return [text + f"{captured} PyTorch itself captures, and refuses only when they run.", ""]


def _peak() -> int:
    """The most memory that this process or one of its own had, in MiB."""
    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(user).ru_maxrss for user in users) // 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, help="samples of each operator, taken evenly (default: all)")
    parser.add_argument(
        "--dtypes", nargs="+", default=list(DTYPES), help="data types; `errors`: refused calls, `types`: refused types"
    )
    parser.add_argument("--operators", nargs="*", default=[], help="only these")
    parser.add_argument("--level", choices=LEVELS, default="tensor", help="where programs are executed")
    parser.add_argument("--mode", choices=get_args(opdb.Mode), default="arguments", help="what is an argument")
    parser.add_argument("--capture", choices=("trace", "export"), default="trace", help="how PyTorch is captured")
    parser.add_argument("--backward", action="store_true", help="differentiate, through torch.compile")
    parser.add_argument("--jobs", type=int, default=2, help="processes; 0 is none besides this one")
    parser.add_argument("--journal", type=Path, help="a file that keeps the verdicts, to go on with later")
    parser.add_argument("--update", action="store_true", help="record the results and write the page")
    parser.add_argument("-v", "--verbose", action="store_true", help="print refusals, too")
    return parser.parse_args()


def main() -> int:
    """Run, print what is wrong and a summary."""
    options = _arguments()
    names = [op.formatted_name for op in opdb.operators(options.operators)]
    failed = 0
    for dtype in options.dtypes:
        started = time.monotonic()
        verdicts: list[opdb.Verdict] = []
        run = Run(dtype, options.samples, options.level, options.mode, options.capture, options.backward)
        for v in _run(names, run, options):
            verdicts.append(v)
            if v.kind in opdb.FAILED or options.verbose and v.kind != "right":
                print(f"{dtype}: {v.kind}: {v.operator} sample {v.sample}: {v.reason[:300]}", flush=True)
        failed += sum(v.kind in opdb.FAILED for v in verdicts)
        counts = Counter(v.kind for v in verdicts)
        print(f"{dtype}: {dict(sorted(counts.items()))} in {time.monotonic() - started:.0f} s", flush=True)
        found = summary.summarize(verdicts)
        full = sum(bool(s.right) and not s.refused and not s.failed for s in found.values())
        print(f"{dtype}: {full} of {len(found)} operators fully right", flush=True)
        longest = max(verdicts, key=lambda v: v.seconds, default=None)
        if longest is not None:
            print(f"{dtype}: at most {longest.seconds} s, {longest.operator} sample {longest.sample}; {_peak()} MiB")
        if options.update:
            summary.record({run.column: found}, "all" if options.samples is None else str(options.samples))
    if options.update:
        text = page(summary.recorded(), summary.samples_taken())
        (ROOT / "docs" / "coverage.md").write_text(text, encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
