"""Small programs on the GPU against PyTorch: first as they were compiled elsewhere, then in every kind of call.

python -m benchmarks.gpu_minutes.smoke JOURNAL [--prepared FOLDER]  # versions, and the programs from FOLDER
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
"""Limit of a program."""

Row = dict[str, Any]


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Returns the relative error, by Euclidean norms."""
    wanted = wanted.double()
    return ((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-30)).item()


def compared(function: Any, args: tuple[torch.Tensor, ...], found: torch.Tensor) -> Row:
    """Returns the errors of PyTorch and of `found` against float64."""
    wide = copy.deepcopy(function).double() if isinstance(function, torch.nn.Module) else function
    wanted = wide(*(a.double() for a in args))
    error, eager = distance(found, wanted), distance(function(*args), wanted)
    return {"right": error <= 3 * eager + 1e-6, "errors": {"eager": eager, "deplodock": error}}


def on_device(case: Case) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """Returns the function of a case and its arguments on the GPU."""
    function, args = case.make()
    if isinstance(function, torch.nn.Module):
        function = function.cuda().requires_grad_(False)
    return function, tuple(a.cuda() for a in args)


def ready_made(case: Case, folder: Path | None) -> Row:
    """Runs a program that was captured on a host and compiled without a GPU."""
    function, args = on_device(case)
    ours = program(case, arch_of(torch.cuda.get_device_capability()), folder)
    found = ours(*args)
    torch.cuda.synchronize()
    return {**compared(function, args, found), "executor": ours.executor.name}


def compiled_here(case: Case) -> Row:
    """Captures tensors of the GPU, for which PyTorch has operators of its own, and calls the program in every way."""
    function, args = on_device(case)
    ours = deplodock.compile(function, args, executor="cuda")
    found = ours(*args)
    torch.cuda.synchronize()
    row = compared(function, args, found)
    ways: dict[str, Callable[..., torch.Tensor]] = {
        "fresh thread": in_fresh_thread,
        "captured": captured,
        "moved": lambda *_: moved(function, args),
    }
    for name, way in ways.items():
        same = way(ours, args)
        torch.cuda.synchronize()
        row[name] = distance(same, found) < 1e-6
    row["right"] = row["right"] and all(row[name] for name in ways)
    return row


def in_fresh_thread(ours: Any, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns the result of a call from a thread that has called nothing of CUDA before."""
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.append(ours(*args)))
    thread.start()
    thread.join()
    if not results:
        raise RuntimeError("a call from another thread fails; its error is in the log")
    return results[0]


def captured(ours: Any, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns the result of a call that is part of a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        ours(*args)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = ours(*args)
    graph.replay()
    return found


def moved(function: Any, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns the result of a program whose launches are a graph, for arguments at other addresses than before."""
    ours = deplodock.compile(function, args, executor="cuda", cuda_graphs=True)
    for _ in range(4):
        ours(*args)
    return ours(*(a.clone() for a in args))


def gradients() -> Row:
    """Compares gradients through torch.compile, whose backward graph runs in a thread of autograd."""
    torch.manual_seed(1)
    block, x = Block().cuda(), torch.randn(4, 32, 64).cuda()
    other = copy.deepcopy(block)
    block(x).square().sum().backward()
    torch.compile(other, backend="deplodock")(x).square().sum().backward()
    torch.cuda.synchronize()
    pairs = zip(block.parameters(), other.parameters(), strict=True)
    error = max(distance(theirs.grad, ours.grad) for ours, theirs in pairs)  # pyright: ignore
    return {"right": error < 1e-4, "errors": {"deplodock": error}}


def main() -> int:
    """Runs the programs that the journal does not have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--prepared", type=Path)
    parser.add_argument("--uses", action="store_true")
    options = parser.parse_args()
    journal = Journal(options.journal, LIMIT_SECONDS)
    todo: dict[str, Callable[[], Row]] = {}
    for case in cases(["smoke"], "cuda", []):
        if options.uses:
            todo[f"{case.key}, compiled here"] = lambda case=case: compiled_here(case)
        else:
            todo[case.key] = lambda case=case: ready_made(case, options.prepared)
    if options.uses:
        todo["smoke: gradients through torch.compile"] = gradients
    else:
        journal.run("versions", versions)
    rows = {key: _shown(key, journal, run) for key, run in todo.items()}
    right = sum(bool(row.get("right")) for row in rows.values())
    print(f"{right} of {len(rows)} right")
    return 0 if right == len(rows) else 1


def _shown(key: str, journal: Journal, run: Callable[[], Row]) -> Row:
    with torch.no_grad() if "gradients" not in key else torch.enable_grad():
        row = journal.run(key, run)
    print(f"{key}: {row}", flush=True)
    return row


if __name__ == "__main__":
    raise SystemExit(main())
