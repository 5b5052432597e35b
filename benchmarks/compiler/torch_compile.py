"""Tries uses of torch.compile with the backend `deplodock`, and writes `docs/torch_compile.md`.

python -m benchmarks.compiler.torch_compile  # all uses (minutes); the exit status is 1 if one is not as expected
python -m benchmarks.compiler.torch_compile views sizes  # some groups of uses
python -m benchmarks.compiler.torch_compile --update  # all uses; writes the page
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from torch_compile import USES  # noqa: E402
from torch_compile.checking import Outcome, Use, outcome  # noqa: E402

PAGE = ROOT / "docs" / "torch_compile.md"

HEAD = """# torch.compile

`torch.compile(module, backend="deplodock")` compiles the graphs that Dynamo finds. This page is written by
`python -m benchmarks.compiler.torch_compile --update`, which compares each use below with eager PyTorch: values, types,
strides, which tensors share memory, and what requires gradients.

- **Gradients.** Where a graph may be differentiated, AOTAutograd makes a forward and a backward graph, and both are
  compiled, for fixed sizes; PyTorch's partitioner decides what is saved between them. An optimizer changes the
  parameters as always, outside. Where only the backward graph is refused, the results are there, and to ask for a
  gradient is the error; a gradient of a gradient is one of PyTorch's. `docs/coverage.md` says of which
  operators the gradients are right. Under `torch.no_grad()`, or where nothing requires a gradient, there is one
  program, which `deplodock.compile` would make as well. A program of `deplodock.compile` has no gradients: its results
  require them where eager PyTorch's would, and to ask for one is an error that says so.
- **Autocast.** Dynamo compiles again where autocast changes. A program of `deplodock.compile` has the types that it was
  traced with: where autocast, around the call, would cast what one of its operators reads and is not as it was then,
  the call is an error that says so.
- **Sizes and numbers that change.** Dynamo compiles a graph again for a second size, then with symbols. One program
  serves all sizes; where that is refused, there is one for each shape, with a `RecompileWarning` that says why, up to
  `torch._dynamo.config.recompile_limit`, after which PyTorch computes the others. A number that changes and is not a
  size has a program for each of its values, within the same limit.
- **Several processes.** A functional collective (`all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`,
  `all_to_all`) is a step of the program between kernels, which PyTorch computes, so a graph does not break there. DDP,
  FSDP2 (`fully_shard`) and tensor parallelism (`parallelize_module`) train as in eager PyTorch. DDP's reducer and the
  hooks of FSDP2 issue their collectives between the compiled graphs, as with every backend. A collective is complete
  when its step ends, so it does not overlap with kernels. Messages from process to process (`isend`) are refused.
- **Loops.** `scan`, `map`, `associative_scan` and a `while_loop` with a counter are compiled, and all except
  `while_loop` with gradients.
- **Memory.** A result has PyTorch's strides; one that is a view of an argument, or the argument itself, is that.
  Results that overlap without one of them having all elements (`y[1:], y[:-1]`) have memory of their own, and in a form
  with symbols only the order of dimensions is PyTorch's.
- **Options.** `options={...}` are the keyword arguments of `deplodock.compile`; others are refused. Every `mode` of
  PyTorch is taken and gives the same program: a model of the GPU chooses every schedule. With `reduce-overhead` and
  `max-autotune` its launches are a CUDA graph for each set of shapes (`cuda_graphs`), whose results nobody overwrites.
  Without a `target` the graphs run on the GPU that is here, else, compiled to C++, on the CPU.
- **What is not supported** is refused by name, as an error of Dynamo's around a `CompileError`, or left to PyTorch
  with `options={"fallback": "eager"}`, which lists it in a `FallbackWarning`.
- **Random numbers** are others than eager PyTorch's, and follow `torch.manual_seed`: the same seed gives the same
  numbers again. A forward graph draws them and the backward graph uses the same ones, which are saved also where a
  checkpoint (`torch.utils.checkpoint`) computes everything else again.
"""


def main() -> int:
    """Tries the chosen uses. Returns 1 if an outcome is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", help="the groups to try; all of them if left out")
    parser.add_argument("--update", action="store_true", help="write docs/torch_compile.md")
    options = parser.parse_args()
    if options.update and options.groups:
        parser.error("--update tries all groups")
    outcomes: list[tuple[Use, Outcome]] = []
    for use in USES:
        if not options.groups or use.group in options.groups:
            outcomes.append((use, result := outcome(use)))
            note = "" if result.kind in use.expected else "  <-- NOT AS EXPECTED"
            print(f"{use.group}: {use.name}: {result.kind} {result.text}{note}", flush=True)
    counts = Counter(o.kind for _, o in outcomes)
    summary = f"{len(outcomes)} uses: " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
    print(summary)
    if options.update:
        rows = "".join(f"| {u.group} | {u.name} | {o.kind} | {_cell(o.text)} |\n" for u, o in outcomes)
        PAGE.write_text(f"{HEAD}\n{summary}.\n\n| group | use | outcome | why |\n|---|---|---|---|\n{rows}", "utf-8")
    return int(any(o.kind not in u.expected for u, o in outcomes))


def _cell(text: str) -> str:
    """Returns a text as a table cell, without absolute paths, of at most about 200 characters."""
    words = " ".join(w for w in text.replace("|", ",").split() if not w.startswith("/"))
    return words if len(words) <= 200 else f"{words[:200]}..."


if __name__ == "__main__":
    sys.exit(main())
