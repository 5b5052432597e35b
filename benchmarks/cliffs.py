"""Times operators that were once much slower than eager PyTorch on the CPU, beside eager.

    python benchmarks/cliffs.py [--only WORD] [--threads N] [--json FILE]

One line per case: seconds of the compilation (the C++ compiler included), microseconds of a call of eager PyTorch and
of the compiled program, their quotient, and the largest relative error against float64. A case is an entry of `CASES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import click
import torch
import torch.nn.functional as F

import deplodock
from deplodock.backend.timing import by_clock


class Case(NamedTuple):
    """One operator on one input. `make` returns the arguments, drawn from the default generator of PyTorch."""

    name: str
    function: Callable[..., Any]
    make: Callable[[], tuple[torch.Tensor, ...]]


def _rows(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Returns a maker of one tensor: normal numbers, or integers from -9 to 9."""
    if dtype.is_floating_point:
        return lambda: (torch.randn(*shape).to(dtype),)
    return lambda: (torch.randint(-9, 10, shape, dtype=dtype),)


def _scans() -> list[Case]:
    """Cumulative operators: along rows and columns, of few long and of many short rows, in several types."""
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


def _places(rows: int, columns: int, bound: int) -> torch.Tensor:
    return torch.randint(bound, (rows, columns))


def _ordering() -> list[Case]:
    """Sorting, selection and searches."""
    square = _rows(1024, 1024)
    return [
        Case("sort 1024x1024", lambda x: x.sort(-1)[0], square),
        Case("topk 8 of 1024x1024", lambda x: x.topk(8, -1)[0], square),
        Case("median 1024x1024", lambda x: x.median(-1)[0], square),
        Case("kthvalue 1024x1024", lambda x: x.kthvalue(50, -1)[0], square),
        Case(
            "bincount of 1e6 in 1000",
            lambda x: torch.bincount(x, minlength=1000),
            lambda: (_places(1, 10**6, 1000)[0],),
        ),
        Case(
            "searchsorted of 1e6 in 1000",
            lambda s, x: torch.searchsorted(s, x),
            lambda: (torch.randn(1000).sort()[0], torch.randn(10**6)),
        ),
    ]


def _addresses() -> list[Case]:
    """Loads and stores at computed addresses: pads, gathers, scatters and samples of images."""
    image = _rows(8, 32, 56, 56)
    two = lambda: (torch.randn(1024, 1024), _places(1024, 1024, 1024))  # noqa: E731
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
            lambda: (torch.randn(10_000, 64), _places(1, 50_000, 10_000)[0], torch.randn(50_000, 64)),
        ),
        Case("bilinear x2 8x32x56x56", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), image),
        Case("bicubic x2 8x32x56x56", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), image),
    ]


CASES = [*_scans(), *_ordering(), *_addresses()]


def _error(result: Any, wanted: Any) -> float:
    """Returns the largest difference of two results relative to the largest number of the second one."""
    if isinstance(result, torch.Tensor):
        scale = wanted.double().abs().max().clamp(min=1e-30)
        return float((result.double() - wanted.double()).abs().max() / scale)
    return max(map(_error, result, wanted))


@click.command(help=__doc__)
@click.option("--only", default="", help="Run the cases whose names contain this text.")
@click.option("--threads", type=int, default=None, help="Number of threads, of PyTorch's and of compiled programs.")
@click.option("--json", "path", default=None, help="Write the figures to this file.")
def main(only: str, threads: int | None, path: str | None) -> None:
    """Measures and prints."""
    if threads is not None:
        torch.set_num_threads(threads)
    figures: list[dict[str, Any]] = []
    print(f"{'case':34s} {'compile s':>9s} {'eager us':>10s} {'ours us':>10s} {'eager/ours':>10s} {'error':>9s}")
    for case in (c for c in CASES if only in c.name):
        torch.manual_seed(0)
        args = case.make()
        start = perf_counter()
        program = deplodock.compile(case.function, args, target="cpu")
        result = program(*args)
        seconds = perf_counter() - start
        wide = [a.double() if a.is_floating_point() else a for a in args]
        error = _error(result, case.function(*wide))
        arms = {"eager": lambda: case.function(*args), "ours": lambda: program(*args)}  # noqa: B023
        eager, ours = (t.median * 1e6 for t in by_clock(arms, seconds=1.0).values())
        row = {"compile": seconds, "eager": eager, "ours": ours, "ratio": eager / ours, "error": error}
        figures.append({"case": case.name} | {k: float(f"{v:.4g}") for k, v in row.items()})
        print(
            f"{case.name:34s} {seconds:9.2f} {eager:10.1f} {ours:10.1f} {eager / ours:10.2f} {error:9.1e}", flush=True
        )
    if path is not None:
        with open(path, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
