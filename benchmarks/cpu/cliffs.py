"""Times operators that were once much slower than eager PyTorch on the CPU, compared with eager
and an earlier version.

    python -m benchmarks.cpu.cliffs [--only WORD] [--threads N] [--before CHECKOUT] [--json FILE]

Prints one table. Each case of `CASES` is a row:

- microseconds of a call of eager PyTorch, of the earlier version, and of this version,
- the ratio of eager's time to that of each version: above 1 the version is faster than eager,
- the largest error of this version against float64.

The compared versions are called arms. They take turns in being timed: in processor time with one thread, in wall time
with more. An earlier version is a checkout of the repository (`git worktree add CHECKOUT COMMIT`), which a second
process imports. A case that a version cannot compile prints "refused".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from timeit import timeit
from typing import Any, NamedTuple

import click
import torch
import torch.nn.functional as F

import deplodock

SAMPLE_SECONDS, ROUNDS = 0.02, 15
"""Seconds of one sample, and samples of each arm."""


class Case(NamedTuple):
    """Operator on one input. `make` returns the arguments, drawn from the default generator of PyTorch."""

    name: str
    function: Callable[..., Any]
    make: Callable[[], tuple[torch.Tensor, ...]]


def _rows(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Returns a function for `Case.make` that draws one tensor: normal numbers, or integers from -9 to 9."""
    if dtype.is_floating_point:
        return lambda: (torch.randn(*shape).to(dtype),)
    return lambda: (torch.randint(-9, 10, shape, dtype=dtype),)


def _scans() -> list[Case]:
    """Returns the cases of cumulative operators: along rows and columns, long and short rows, several types."""
    cases = [
        Case(f"cumsum {'x'.join(map(str, shape))} along {dim}", lambda x, dim=dim: x.cumsum(dim), _rows(*shape))
        for shape, dim in (
            ((1024, 1024), 1),
            ((64, 65536), 1),
            ((1, 1_000_000), 1),
            ((20_000, 33), 1),
            ((1024, 1024), 0),
            ((65536, 64), 0),
            ((64, 256, 64), 1),
            ((8, 10_000, 3), 1),
        )
    ]
    for dtype in (torch.int64, torch.int32, torch.bfloat16, torch.float16, torch.float64):
        name = str(dtype).removeprefix("torch.")
        cases.append(Case(f"cumsum 1024x1024 {name}", lambda x: x.cumsum(1), _rows(1024, 1024, dtype=dtype)))
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "cumprod": lambda x: (1 + x / 1000).cumprod(1),
        "cummax": lambda x: x.cummax(1),
        "cummin of columns": lambda x: x.cummin(0),
        "logcumsumexp": lambda x: x.logcumsumexp(1),
        "logcumsumexp of columns": lambda x: x.logcumsumexp(0),
        "relu(cumsum(2 x))": lambda x: (x * 2).cumsum(1).relu(),
        "flip(cumsum(flip(x)))": lambda x: x.flip(1).cumsum(1).flip(1),
    }
    return cases + [Case(f"{name} 1024x1024", function, _rows(1024, 1024)) for name, function in functions.items()]


def _indices(rows: int, columns: int, bound: int) -> torch.Tensor:
    return torch.randint(bound, (rows, columns))


def _ordering() -> list[Case]:
    """Returns the cases of sorting, selection and binary search."""
    square = _rows(1024, 1024)
    return [
        Case("sort 1024x1024", lambda x: x.sort(-1)[0], square),
        Case("topk 8 of 1024x1024", lambda x: x.topk(8, -1)[0], square),
        Case("median 1024x1024", lambda x: x.median(-1)[0], square),
        Case("kthvalue 1024x1024", lambda x: x.kthvalue(50, -1)[0], square),
        Case(
            "bincount of 1e6 in 1000",
            lambda x: torch.bincount(x, minlength=1000),
            lambda: (_indices(1, 10**6, 1000)[0],),
        ),
        Case(
            "searchsorted of 1e6 in 1000",
            lambda s, x: torch.searchsorted(s, x),
            lambda: (torch.randn(1000).sort()[0], torch.randn(10**6)),
        ),
    ]


def _addresses() -> list[Case]:
    """Returns the cases with computed addresses: padding, gathers, scatters, and sampling of images."""
    image = _rows(8, 32, 56, 56)
    two = lambda: (torch.randn(1024, 1024), _indices(1024, 1024, 1024))  # noqa: E731
    rows = lambda: (torch.randn(10_000, 64), _indices(1, 50_000, 10_000)[0])  # noqa: E731
    three = lambda: (*two(), torch.randn(1024, 1024))  # noqa: E731
    cases = [
        Case(f"{mode} pad 8x32x56x56", lambda x, mode=mode: F.pad(x, (3, 3, 3, 3), mode=mode), image)
        for mode in ("reflect", "circular", "replicate")
    ]
    return cases + [
        Case("gather along rows 1024x1024", lambda x, i: x.gather(1, i), two),
        Case("gather along columns 1024x1024", lambda x, i: x.gather(0, i), two),
        Case("scatter_add along rows 1024x1024", lambda x, i, y: x.scatter_add(1, i, y), three),
        Case(
            "index_add 50000x64",
            lambda x, i, y: x.index_add(0, i, y),
            lambda: (torch.randn(10_000, 64), _indices(1, 50_000, 10_000)[0], torch.randn(50_000, 64)),
        ),
        Case("bilinear x2 8x32x56x56", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), image),
        Case("bicubic x2 8x32x56x56", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), image),
        Case(
            "grid_sample 8x32x56x56",
            lambda x, g: F.grid_sample(x, g, align_corners=False),
            lambda: (torch.randn(8, 32, 56, 56), torch.rand(8, 56, 56, 2) * 2 - 1),
        ),
        Case("index_select 50000 of 10000x64", lambda x, i: x.index_select(0, i), rows),
        Case("embedding_bag 2500x20 of 10000x64", lambda x, i: F.embedding_bag(i.view(2500, 20), x), rows),
    ]


def _special() -> list[Case]:
    return [
        Case("erfinv 1024x1024", lambda x: (x * 0.3).tanh().erfinv(), _rows(1024, 1024)),
        Case("lgamma 1024x1024", lambda x: x.lgamma(), _rows(1024, 1024)),
        Case("digamma 1024x1024", lambda x: x.digamma(), _rows(1024, 1024)),
    ]


CASES = [*_scans(), *_ordering(), *_addresses(), *_special()]


def _error(result: Any, expected: Any) -> float:
    """Returns the largest difference of two results, relative to the largest magnitude of the expected one."""
    if isinstance(result, torch.Tensor):
        scale = expected.double().abs().max().clamp(min=1e-30)
        return float((result.double() - expected.double()).abs().max() / scale)
    return max(map(_error, result, expected))


class Arm:
    """Version of a case, compiled and timed in this process.

    Attributes:
        refused: The first line of the compile error, or None.
        error: The largest relative error against float64.
    """

    def __init__(self, case: Case, eager: bool = False) -> None:
        torch.manual_seed(0)
        self.args, self.function, self.refused, self.error = case.make(), case.function, None, 0.0
        if eager:
            return
        try:
            self.function = deplodock.compile(case.function, self.args, target="cpu")
            result = self.function(*self.args)
        except Exception as error:
            self.refused = str(error).partition("\n")[0] or type(error).__name__
            return
        wide = [a.double() if a.is_floating_point() else a for a in self.args]
        self.error = _error(result, case.function(*wide))

    def sample(self, calls: int) -> float:
        """Returns seconds of one call, as the mean of `calls` calls."""
        timer = process_time if torch.get_num_threads() == 1 else perf_counter
        return timeit(lambda: self.function(*self.args), timer=timer, number=calls) / calls


def _serve() -> None:
    """Serves `RemoteArm` on stdin. A number n >= 0 compiles case n; -n times n calls and prints seconds per call."""
    arm = None
    torch.set_num_threads(int(sys.stdin.readline()))
    for line in sys.stdin:
        if (number := int(line)) >= 0:
            arm = Arm(CASES[number])
            print(json.dumps([arm.refused, arm.error]), flush=True)
        elif arm is not None:
            print(arm.sample(-number), flush=True)


class RemoteArm:
    """The arm of an earlier version. A second process compiles and times the case."""

    def __init__(self, process: subprocess.Popen[str], case: int) -> None:
        self.process = process
        self.refused, self.error = self._ask(case)

    def _ask(self, number: int) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(number, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def sample(self, calls: int) -> float:
        """Returns seconds of one call, as the mean of `calls` calls."""
        return self._ask(-calls)


@contextmanager
def _worker(checkout: Path | None) -> Iterator[subprocess.Popen[str] | None]:
    """Yields a process that runs this file with the `deplodock` of `checkout`; None for no checkout."""
    if checkout is None:
        yield None
        return
    with TemporaryDirectory() as folder:
        (Path(folder) / "deplodock").symlink_to(checkout.resolve(), target_is_directory=True)
        command = [sys.executable, __file__, "--serve"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": folder}, **pipes) as process:
            print(torch.get_num_threads(), file=process.stdin, flush=True)
            yield process
            assert process.stdin is not None
            process.stdin.close()


def _timed(arms: dict[str, Any]) -> dict[str, float]:
    """Returns the median seconds per call of each arm. Arms take turns; every other round runs in reverse order."""
    calls = {name: max(1, int(SAMPLE_SECONDS / min(arm.sample(1) for _ in range(3)))) for name, arm in arms.items()}
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for i in range(ROUNDS):
        for name in list(arms)[:: 1 if i % 2 == 0 else -1]:
            samples[name].append(arms[name].sample(calls[name]))
    return {name: median(s) for name, s in samples.items()}


def _commit(folder: Path) -> str:
    """Returns the commit of a checkout, with a plus sign if files differ from it."""
    git = partial(subprocess.run, cwd=folder, capture_output=True, text=True, check=False)
    changed = git(["git", "diff", "--quiet", "HEAD"]).returncode
    return git(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip() + "+" * (changed == 1)


def _line(row: dict[str, Any]) -> str:
    """Returns a case's row of the Markdown table."""
    digits = {"eager": ".1f", "before": ".1f", "now": ".1f", "error": ".1e"}
    cells = [format(row[n], digits.get(n, ".2f")) if isinstance(row.get(n), float) else str(row[n]) for n in COLUMNS]
    return "| " + " | ".join(cells) + " |"


COLUMNS = ("case", "eager", "before", "now", "eager/before", "eager/now", "error")


@click.command(help=__doc__)
@click.option("--only", default="", help="Run the cases whose names contain this text.")
@click.option("--threads", type=int, default=1, help="Number of threads, of PyTorch's and of compiled programs.")
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="Checkout of an earlier version.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures to this file.")
@click.option("--serve", is_flag=True, hidden=True)
def main(only: str, threads: int, before: Path | None, path: Path | None, serve: bool) -> None:
    """Measures the cases and prints the table."""
    if serve:
        return _serve()
    from deplodock.frontend.bench import environment

    torch.set_num_threads(threads)
    about = environment() | {"commit": _commit(Path(__file__).parent), "before": before and _commit(before)}
    print(
        f"{about['processor']}, {threads} thread(s), torch {about['torch']}, {about['before']} -> {about['commit']}\n"
    )
    print("| " + " | ".join(f"{n} us" if n in COLUMNS[1:4] else n for n in COLUMNS) + " |\n|---" + "|--:" * 6 + "|")
    rows: list[dict[str, Any]] = []
    with _worker(before) as worker:
        for number, case in enumerate(CASES):
            if only not in case.name:
                continue
            arms: dict[str, Any] = {"eager": Arm(case, eager=True), "now": Arm(case)}
            if worker is not None:
                arms["before"] = RemoteArm(worker, number)
            us = {n: s * 1e6 for n, s in _timed({n: a for n, a in arms.items() if a.refused is None}).items()}
            ratios = {f"eager/{n}": us["eager"] / us[n] for n in us if n != "eager"}
            figures = {n: float(f"{v:.4g}") for n, v in (us | ratios | {"error": arms["now"].error}).items()}
            missing = {n: "refused" if n in arms else "-" for n in ("before", "now") if n not in us}
            rows.append({"case": case.name} | missing | {f"eager/{n}": "-" for n in missing} | figures)
            print(_line(rows[-1]), flush=True)
    if path is not None:
        lines = ",\n  ".join(map(json.dumps, rows))
        path.write_text(f'{{\n "environment": {json.dumps(about)},\n "cases": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
