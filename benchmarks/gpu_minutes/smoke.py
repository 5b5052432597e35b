"""Compares three small programs on the GPU with PyTorch: compiled elsewhere, or compiled here and called in many ways.

python -m benchmarks.gpu_minutes.smoke JOURNAL [--prepared FOLDER]  # records versions; programs compiled elsewhere
python -m benchmarks.gpu_minutes.smoke JOURNAL --uses  # compiled here: threads, CUDA graphs, gradients
"""

from __future__ import annotations

import argparse
import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # noqa: E402

import deplodock  # noqa: E402
from deplodock.backend.cuda.runtime import arch_of  # noqa: E402

from ..common.cases import Case, cases
from ..common.journal import Journal
from ..common.prepared import program
from ..common.smoke_programs import Block
from .machine import versions

LIMIT_SECONDS = 30.0
"""Time after which a program counts as hanging."""

Row = dict[str, Any]


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the Euclidean norm of the error divided by that of the expected tensor."""
    expected = expected.double()
    return ((result.double() - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def compare_with_float64(function: Any, args: tuple[torch.Tensor, ...], result: torch.Tensor) -> Row:
    """Returns the columns `right` and `errors` of a row: errors of eager PyTorch and of `result` against float64.

    Args:
        function: the function or module.
        args: its arguments.
        result: the result of deplodock.
    """
    wide = copy.deepcopy(function).double() if isinstance(function, torch.nn.Module) else function
    expected = wide(*(a.double() for a in args))
    error, eager = relative_error(result, expected), relative_error(function(*args), expected)
    return {"right": error <= 3 * eager + 1e-6, "errors": {"eager": eager, "deplodock": error}}


def on_device(case: Case) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """Returns the function of a case and its arguments, moved to the GPU."""
    function, args = case.make()
    if isinstance(function, torch.nn.Module):
        function = function.cuda().requires_grad_(False)
    return function, tuple(a.cuda() for a in args)


def run_prepared(case: Case, folder: Path | None) -> Row:
    """Runs a program that was compiled on a machine without a GPU, and returns its row."""
    function, args = on_device(case)
    ours = program(case, arch_of(torch.cuda.get_device_capability()), folder)
    result = ours(*args)
    torch.cuda.synchronize()
    return {**compare_with_float64(function, args, result), "executor": ours.executor.name}


def run_compiled_here(case: Case) -> Row:
    """Compiles a case from tensors on the GPU, for which PyTorch may choose other operators. Calls it in four ways."""
    function, args = on_device(case)
    ours = deplodock.compile(function, args, executor="cuda")
    result = ours(*args)
    torch.cuda.synchronize()
    row = compare_with_float64(function, args, result)
    calls: dict[str, Callable[..., torch.Tensor]] = {
        "fresh thread": in_fresh_thread,
        "captured": in_cuda_graph,
        "moved": lambda *_: at_new_addresses(function, args),
    }
    for name, call in calls.items():
        repeated = call(ours, args)
        torch.cuda.synchronize()
        row[name] = relative_error(repeated, result) < 1e-6
    row["right"] = row["right"] and all(row[name] for name in calls)
    return row


def in_fresh_thread(ours: Any, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns the result of a call from a thread without earlier CUDA calls."""
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.append(ours(*args)))
    thread.start()
    thread.join()
    if not results:
        raise RuntimeError("a call from another thread fails; its error is in the log")
    return results[0]


def in_cuda_graph(ours: Any, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns the result of a call that PyTorch captures in a CUDA graph and replays."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        ours(*args)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = ours(*args)
    graph.replay()
    return result


def at_new_addresses(function: Any, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns the result of a program with `cuda_graphs=True` for arguments at new addresses."""
    ours = deplodock.compile(function, args, executor="cuda", cuda_graphs=True)
    for _ in range(4):
        ours(*args)
    return ours(*(a.clone() for a in args))


def gradients() -> Row:
    """Compares gradients through torch.compile with eager ones. The backward graph runs in a thread of autograd."""
    torch.manual_seed(1)
    block, x = Block().cuda(), torch.randn(4, 32, 64).cuda()
    other = copy.deepcopy(block)
    block(x).square().sum().backward()
    torch.compile(other, backend="deplodock")(x).square().sum().backward()
    torch.cuda.synchronize()
    pairs = zip(block.parameters(), other.parameters(), strict=True)
    error = max(relative_error(theirs.grad, ours.grad) for ours, theirs in pairs)  # pyright: ignore
    return {"right": error < 1e-4, "errors": {"deplodock": error}}


def main() -> int:
    """Runs the programs without a row in the journal. Returns 0 if all are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--prepared", type=Path)
    parser.add_argument("--uses", action="store_true")
    options = parser.parse_args()
    journal = Journal(options.journal, LIMIT_SECONDS)
    measurements: dict[str, Callable[[], Row]] = {}
    for case in cases(["smoke"], "cuda", []):
        if options.uses:
            measurements[f"{case.key}, compiled here"] = lambda case=case: run_compiled_here(case)
        else:
            measurements[case.key] = lambda case=case: run_prepared(case, options.prepared)
    if options.uses:
        measurements["smoke: gradients through torch.compile"] = gradients
    else:
        journal.run("versions", versions)
    rows = {key: _run_and_print(key, journal, run) for key, run in measurements.items()}
    right = sum(bool(row.get("right")) for row in rows.values())
    print(f"{right} of {len(rows)} right")
    return 0 if right == len(rows) else 1


def _run_and_print(key: str, journal: Journal, run: Callable[[], Row]) -> Row:
    with torch.no_grad() if "gradients" not in key else torch.enable_grad():
        row = journal.run(key, run)
    print(f"{key}: {row}", flush=True)
    return row


if __name__ == "__main__":
    raise SystemExit(main())
