"""Runs PyTorch's operator test database (op_db) against the compiler, and writes `docs/coverage.md`.

    python -m benchmarks.compiler.coverage  # every sample of every operator, five data types (an hour)
    python -m benchmarks.compiler.coverage --samples 4  # four samples of each (minutes)
    python -m benchmarks.compiler.coverage --operators sort cumsum --dtypes float32 -v
    python -m benchmarks.compiler.coverage --dtypes float32 --samples 2 --level cuda  # as CUDA text, on the emulator
    python -m benchmarks.compiler.coverage --dtypes float32 --mode constants  # all tensors but one as constants
    python -m benchmarks.compiler.coverage --dtypes float32 --samples 3 --backward  # gradients, through torch.compile

A sample is one call of an operator in op_db. Its verdict should be right, or refused with a named reason. The exit
status is 1 if a sample is wrong, crashes or takes over a minute.

`--mode keywords` runs each sample several times, each time without one of its keyword arguments. `--capture export`
uses the capture of `deplodock.compile` instead of a faster one. `--jobs 0` runs everything in this process. `--update`
writes the results of this run to the page and to `tests/conformance/results.json`, the expectations of the tests.
`--journal FILE` stores the verdicts, so that an interrupted run continues.
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
    if not run.backward:
        # The tracer of the conformance tests changes PyTorch's decompositions, so gradients are computed without it.
        _TRACER.append(_MARKS.enter_context(tracer()))


@dataclass(frozen=True)
class Run:
    """Settings of one column of the page.

    Attributes:
        dtype: data type; or `errors` for calls that PyTorch refuses, `types` for data types that it refuses.
        samples: number of samples of each operator, or None for all.
        level: level at which programs are executed, such as `tensor` or `cuda`.
        mode: which tensors are arguments of the program, or `keywords`.
        capture: `trace` or `export`.
        backward: whether gradients are compared, through torch.compile.
    """

    dtype: str
    samples: int | None
    level: str
    mode: opdb.Mode
    capture: str
    backward: bool = False

    @property
    def column(self) -> str:
        """Name of the column: the data type, and the settings that differ from the defaults."""
        usual = ("tensor", "arguments", "trace")
        mode = "backward" if self.backward else self.mode
        return " ".join([self.dtype, *(v for v in (self.level, mode, self.capture) if v not in usual)])


def _run_one(name: str, run: Run) -> list[opdb.Verdict]:
    (op,) = [op for op in opdb.operators() if op.formatted_name == name]
    if run.dtype == "errors":
        return list(opdb.judge_errors(_TRACER[0], op)) if op.error_inputs_func is not None else []
    if run.dtype == "types":
        return list(opdb.judge_types(_TRACER[0], op))
    dtype = getattr(torch, run.dtype)
    if not op.supports_dtype(dtype, "cpu"):
        return []
    if run.backward:
        cases = (
            opdb.samples(op, dtype, run.samples, requires_grad=True) if gradients.is_differentiable(op, dtype) else ()
        )
        return [gradients.judge_gradients(op, i, sample, run.level) for i, sample in cases]
    capture: Capture = _TRACER[0] if run.capture == "trace" else Exporter()
    cases = list(opdb.samples(op, dtype, run.samples, mode=run.mode))
    verdicts: list[opdb.Verdict] = []
    for start in range(0, len(cases), BUILT_TOGETHER):
        part = cases[start : start + BUILT_TOGETHER]
        verdicts += opdb.judge_all(capture, op, part, down_to(run.level), run.mode)
    return verdicts


BUILT_TOGETHER = 12
"""Number of samples of an operator that are compiled together."""


def _run(names: Sequence[str], run: Run, options: argparse.Namespace) -> Iterator[opdb.Verdict]:
    journal = Journal(options.journal, [run.column, run.samples])
    for name in names:
        yield from journal.verdicts.get(name, [])
    remaining = [name for name in names if name not in journal.verdicts]
    if not options.jobs:
        _start(run)
        for name in remaining:
            yield from journal.add(name, _run_one(name, run))
    # Libraries that the emulator compiled stay loaded, so processes are replaced after 40 operators each.
    batch = 40 * options.jobs if run.level == "cuda" else len(remaining)
    while remaining and options.jobs:
        with ProcessPoolExecutor(options.jobs, initializer=_start, initargs=(run,)) as pool:
            part = [(name, pool.submit(_run_one, name, run)) for name in remaining[:batch]]
            for name, future in part:
                try:
                    verdicts = future.result()
                except BrokenProcessPool:
                    # Another operator of the batch may have ended the process, so its operators run again one by one.
                    if batch == 1:
                        yield from journal.add(name, [opdb.Verdict(name, 0, "crash", "the process ended")])
                        remaining.remove(name)
                    batch = 1
                    break
                remaining.remove(name)
                yield from journal.add(name, verdicts)
            else:
                batch = 40 * options.jobs if run.level == "cuda" else max(len(remaining), 1)


class Journal:
    """The verdicts of a run by operator, stored in a file with one line per operator.

    Args:
        path: the file, or None to store nothing.
        run: settings of the run. Lines of a run with other settings are ignored.
    """

    def __init__(self, path: Path | None, run: Sequence[object]) -> None:
        self._path, self._run = path, list(run)
        self.verdicts: dict[str, list[opdb.Verdict]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                run_of_line, name, rows = json.loads(line)
                if run_of_line == self._run:
                    self.verdicts[name] = [opdb.Verdict(name, *row) for row in rows]

    def add(self, name: str, verdicts: Sequence[opdb.Verdict]) -> Sequence[opdb.Verdict]:
        """Stores and returns the verdicts of an operator."""
        if self._path is not None:
            rows = [(v.sample, v.kind, v.reason[:300], v.seconds) for v in verdicts]
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([self._run, name, rows]) + "\n")
        return verdicts


def _cell(result: summary.Summary | None) -> str:
    if result is None:
        return ""
    if result.failed:
        return f"**{result.failed} wrong**"
    if not result.refused:
        return "right" if result.right else "–"
    return f"{result.right} of {result.right + result.refused}: {result.reason}" if result.right else result.reason


RANDOM_PROGRAMS = (
    "Random programs, by `python -m fuzz` (with `tests` on the path), at 3491961 and 4b62153, none wrong. On the "
    "reference 10000 (seeds from 800000): 9940 right, 60 refused, 0.02 s each. On the emulator, the four targets in "
    "turn, 8000 (from 600000 and 610000) in two processes: 7978 right, 21 refused, one that read a tensor without "
    "elements and is a test now; 0.06 to 0.11 s each, at most 549 MiB and 700 memory maps. In the simulator, the "
    "targets in turn, 1000 (from 700000): 989 right, 11 refused, 0.05 s each. Most of what was refused were operators "
    "on empty tensors of types that PyTorch has no kernel for; such programs are not drawn any more."
)
"""Results of the fuzzers for the page; written by hand."""

COMMITS = (
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
"""Commits of the results on the page; written by hand."""

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
"""Columns of the page: names of runs."""

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
"""Section of the page on results that differ among PyTorch's kernels or from them; written by hand."""


def page(results: dict[str, dict[str, summary.Summary]], sample_limits: dict[str, str]) -> str:
    """Returns the Markdown text of the coverage page.

    Args:
        results: column -> operator -> summary.
        sample_limits: column -> largest number of samples of each operator, as text; absent if all samples ran.
    """
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
        COMMITS,
        "",
        *_errors(results.get("errors", {})),
        "| | " + " | ".join(results := {c: results[c] for c in COLUMNS if c in results}) + " |",
        "|---|" + "---|" * len(results),
        "| samples of each operator | " + " | ".join(sample_limits.get(c, "all") for c in results) + " |",
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


def _errors(results: dict[str, summary.Summary]) -> list[str]:
    refused, captured = sum(s.refused for s in results.values()), sum(s.right for s in results.values())
    if not results:
        return []
    text = f"Of {refused + captured} calls that PyTorch refuses, {refused} are refused with a diagnostic at capture; "
    return [text + f"{captured} PyTorch itself captures, and refuses only when they run.", ""]


def _peak() -> int:
    """Returns the peak memory of this process or of a child process, in MiB."""
    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(user).ru_maxrss for user in users) // 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, help="number of samples of each operator, evenly spaced (default: all)")
    parser.add_argument(
        "--dtypes", nargs="+", default=list(DTYPES), help="data types; `errors`: refused calls, `types`: refused types"
    )
    parser.add_argument("--operators", nargs="*", default=[], help="operators to run (default: all)")
    parser.add_argument("--level", choices=LEVELS, default="tensor", help="level at which programs are executed")
    parser.add_argument("--mode", choices=get_args(opdb.Mode), default="arguments", help="which tensors are arguments")
    parser.add_argument("--capture", choices=("trace", "export"), default="trace", help="how PyTorch is captured")
    parser.add_argument("--backward", action="store_true", help="differentiate, through torch.compile")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes; 0 runs all in this one")
    parser.add_argument("--journal", type=Path, help="file of verdicts, to continue an interrupted run")
    parser.add_argument("--update", action="store_true", help="record the results and write the page")
    parser.add_argument("-v", "--verbose", action="store_true", help="print refusals, too")
    return parser.parse_args()


def main() -> int:
    """Runs the samples, prints failures and a summary. Returns the exit status."""
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
        results = summary.summarize(verdicts)
        full = sum(bool(s.right) and not s.refused and not s.failed for s in results.values())
        print(f"{dtype}: {full} of {len(results)} operators fully right", flush=True)
        longest = max(verdicts, key=lambda v: v.seconds, default=None)
        if longest is not None:
            print(f"{dtype}: at most {longest.seconds} s, {longest.operator} sample {longest.sample}; {_peak()} MiB")
        if options.update:
            summary.record({run.column: results}, "all" if options.samples is None else str(options.samples))
    if options.update:
        text = page(summary.recorded(), summary.samples_taken())
        (ROOT / "docs" / "coverage.md").write_text(text, encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
