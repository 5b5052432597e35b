"""The oracle: compares the printed CUDA or C++ of many programs with recorded hashes, to show that a change keeps it.

    python tests/oracle.py check                    # compare with tests/data/oracle.json
    python tests/oracle.py write --texts FOLDER     # record the present hashes; write texts to FOLDER
    python tests/oracle.py check --texts FOLDER --only softmax    # show diffs to the texts in FOLDER
    python tests/oracle.py check --cpp              # C++ instead: tests/data/oracle_cpp.json

Its programs are the 84 shapes in f32 and bf16 for every target, the programs of `tests/programs` and
`tests/data/programs.txt`, and a decoder layer of each of the two models at full size. C++ is printed for every
instruction set of `CPUS`, except for the programs of `programs.txt`, which use one of them each. Its target is a fixed
CPU with four cores, independent of this machine. C++ is compared without its headers, which are files of the library.
The kernels of `tests/programs` are GPU kernels and have no C++.

Each text is recorded as two hashes: one of the text, one of the text without comments and with numbered identifiers.
A check prints for each program `identical`, `names` (identical except for comments and identifiers), `different` or
`new`. For the 84 shapes it also prints changes of the predicted time. The exit status is 1 if a text is different or
missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from difflib import unified_diff
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import torch

from deplodock.errors import CompileError

sys.path.insert(0, str(Path(__file__).parent))

TESTS = Path(__file__).parent
os.environ |= {"DEPLODOCK_CORES": "none", "DEPLODOCK_RECORDS": "none"}  # also of the processes that are spawned
# JAX installs opt_einsum, with which PyTorch would choose another order of contractions.
torch.backends.opt_einsum.enabled = False

CPUS = {isa: f"cpu{{isa={isa} cores=4}}" for isa in ("avx2", "avx512", "neon")}
"""Instruction set -> the target of its C++."""

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
HAND_WRITTEN = {
    "loop_nests": "loop-to-tile,tile-to-kernel",
    "large_nests": "loop-to-tile,tile-to-kernel",
    "kernels": "cse,dce,kernel-allocate-shared,kernel-insert-barriers",
}
"""File of `tests/programs` -> passes that lower it to the kernel level."""

Texts = dict[str, tuple[str, float | None]]
"""Program name -> its CUDA or C++, and the predicted seconds or None."""

Subject = tuple[Callable[[str, bool], Texts], str, bool]
"""A unit of work: a function that prints texts, and its arguments, a name and whether to print C++."""


def subjects(cpp: bool) -> list[Subject]:
    """Returns all units of work, for CUDA or for C++."""
    from programs.people import PROGRAMS
    from support.seed84 import NAMES

    lines = (TESTS / "data" / "programs.txt").read_text(encoding="utf-8").splitlines()
    layers = [f"{model}/{dtype}" for model in ("qwen2.5-7b", "tinyllama") for dtype in DTYPES]
    work = [
        *((_layer, name) for name in layers),
        *((_shape, f"{name}/{dtype}") for name in NAMES for dtype in DTYPES),
        *((_people, name) for name in PROGRAMS),
        *((_line, code) for code in lines),
        *((_hand_written, name) for name in HAND_WRITTEN if not cpp or name != "kernels"),
    ]
    return [(make, name, cpp) for make, name in work]


def _targets(cpp: bool) -> dict[str, str]:
    """Suffix of a program's name -> target, for programs that have CUDA for one target only."""
    return {f"/{isa}": target for isa, target in CPUS.items()} if cpp else {"": "sm_90a"}


def _compile(
    name: str, function: Any, args: Any, targets: Mapping[str, str], predicted: bool = False, **options: Any
) -> Texts:
    """Captures a program once and returns its texts for all `targets`, which share the tensor level."""
    from deplodock.frontend.capture.export import capture
    from deplodock.frontend.compilation import Compilation

    tensor = Compilation(capture(function, args, **options).module).at("tensor")
    return {
        f"{name}{suffix}": _printed(Compilation(tensor, target, level="tensor"), predicted)
        for suffix, target in targets.items()
    }


def _printed(compilation: Any, predicted: bool = False) -> tuple[str, float | None]:
    """Returns the C++ or CUDA of a compilation, as its target requires, and the predicted seconds if `predicted`."""
    if compilation.target.startswith("cpu"):
        return _without_headers(compilation.cpp), None
    return compilation.cuda, _predicted(compilation, compilation.target) if predicted else None


def _without_headers(text: str) -> str:
    """Returns the text from its kernels on."""
    from deplodock.backend.cpp.writer import KERNELS_MARK

    return text.partition(KERNELS_MARK)[2]


def _predicted(compilation: Any, target: str) -> float:
    """Returns the predicted time of all kernels together in seconds."""
    from deplodock.dialects import loop
    from deplodock.passes.analysis.nest_schedule import schedule_of
    from deplodock.passes.planning.model import model_of
    from deplodock.passes.planning.nest_info import NestInfo
    from deplodock.target.attribute import get_target

    nests = [op for op in compilation.scheduled().walk() if isinstance(op, loop.NestOp)]
    plans = [(nest, schedule_of(nest)) for nest in nests]
    return sum(model_of(NestInfo(n), get_target(target)).predict(s).seconds for n, s in plans if s is not None)


def _shape(name: str, cpp: bool) -> Texts:
    from support.seed84 import make_case

    from deplodock.target.architectures import TARGETS

    shape, dtype = name.split("/")
    case = make_case(shape, DTYPES[dtype])
    inputs = [torch.empty(s, dtype=case.dtype) for s in case.shapes.values()]
    targets = _targets(cpp) if cpp else {f"/{target}": target for target in TARGETS}
    return _compile(name, case.function, inputs, targets, True, names=list(case.shapes))


def _layer(name: str, cpp: bool) -> Texts:
    from support.layers import make_layer

    model, dtype = name.split("/")
    layer = make_layer(model, DTYPES[dtype], small=False)
    hidden = torch.empty((1, 512, layer.config.hidden_size), dtype=DTYPES[dtype])
    return _compile(f"layer/{name}", layer, [hidden], _targets(cpp), True)


def _people(name: str, cpp: bool) -> Texts:
    from programs.people import PROGRAMS

    torch.manual_seed(0)
    function, args = PROGRAMS[name]()
    return _compile(f"people/{name}", function, args, dict([_only_target(name, _targets(cpp))]))


def _only_target(name: str, targets: Mapping[str, str]) -> tuple[str, str]:
    """Returns one of the targets, chosen by the name, so that a check takes minutes."""
    return list(targets.items())[zlib.crc32(name.encode()) % len(targets)]


def _line(code: str, cpp: bool) -> Texts:
    from deplodock.tools.reports import load

    return {f"-c {code}{suffix}": _printed(load(None, code, t, 0).compilation) for suffix, t in _targets(cpp).items()}


def _hand_written(name: str, cpp: bool) -> Texts:
    from deplodock.backend.cpu.printer import print_cpp
    from deplodock.backend.cuda.printer import print_cuda
    from deplodock.dialects import make_context
    from deplodock.dialects.support.parsing import parse_module
    from deplodock.passes.pass_manager import run_passes
    from deplodock.passes.pipelines import parse_passes

    texts: Texts = {}
    for i, text in enumerate((TESTS / "programs" / f"{name}.mlir").read_text(encoding="utf-8").split("// -----")):
        for suffix, target in _targets(cpp).items():
            ctx = make_context()
            module = parse_module(ctx, text, f"{name}.mlir")
            run_passes(ctx, module, parse_passes(HAND_WRITTEN[name], {"target": (target,)}))
            texts[f"{name}/{i}{suffix}"] = (_without_headers(print_cpp(module)) if cpp else print_cuda(module), None)
    return texts


def _work(subject: Subject) -> Texts:
    make, argument, cpp = subject
    torch.set_num_threads(1)
    try:
        return make(argument, cpp)
    except CompileError as refused:
        return {f"{make.__name__.strip('_')}/{argument}": (f"refused: {refused}", None)}


def normal(text: str) -> str:
    """Returns a text without comments and line breaks, with identifiers replaced by numbers in order of appearance."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    numbers: dict[str, str] = {}
    text = re.sub(r"\b[A-Za-z_]\w*", lambda m: numbers.setdefault(m[0], f"v{len(numbers)}"), text)
    return " ".join(text.split())


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _made(only: str, jobs: int, cpp: bool) -> Iterator[tuple[str, str, float | None]]:
    todo = [s for s in subjects(cpp) if only in f"{s[0].__name__}/{s[1]}"]
    with (
        ProcessPoolExecutor(jobs, get_context("spawn")) as pool,
        click.progressbar(pool.map(_work, todo, chunksize=4), length=len(todo), file=sys.stderr) as results,
    ):
        for texts in results:
            yield from ((name, text, seconds) for name, (text, seconds) in texts.items())


@click.command()
@click.argument("action", type=click.Choice(["check", "write"]))
@click.option("--only", default="", help="Only programs with this in their names.")
@click.option("--texts", type=click.Path(path_type=Path), help="Folder of the texts: written, or read for diffs.")
@click.option("--jobs", default=2, show_default=True)
@click.option("--cpp", is_flag=True, help="C++ for CPUs instead of CUDA.")
def main(action: str, only: str, texts: Path | None, jobs: int, cpp: bool) -> None:
    """Compares the printed CUDA or C++ with the oracle, or records a new oracle."""
    oracle = TESTS / "data" / ("oracle_cpp.json" if cpp else "oracle.json")
    old: dict[str, Any] = json.loads(oracle.read_text(encoding="utf-8")) if oracle.exists() else {}
    new: dict[str, Any] = {}
    report: Counter[str] = Counter()
    for name, text, seconds in _made(only, jobs, cpp):
        new[name] = [_hash(text), _hash(normal(text)), *([] if seconds is None else [round(seconds * 1e6, 3)])]
        before = old.get(name)
        same = ("new" if before is None else "identical" if before[0] == new[name][0]
                else "names" if before[1] == new[name][1] else "different")  # fmt: skip
        report[same] += 1
        file = None if texts is None else texts / f"{_hash(name)}.{'cpp' if cpp else 'cu'}"
        if action == "check" and same == "different":
            click.echo(f"different: {name}")
            if file is not None and file.exists():
                click.echo("\n".join(unified_diff(file.read_text().splitlines(), text.splitlines(), lineterm="", n=1)))
        if action == "check" and before is not None and before[2:] != new[name][2:]:
            click.echo(f"predicted: {name}: {before[2:]} us before, {new[name][2:]} us now")
        if action == "write" and file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    gone = [] if only else sorted(set(old) - set(new))
    if action == "write":
        kept = old if only else {}
        lines = [f"{json.dumps(n)}: {json.dumps(h)}" for n, h in sorted({**kept, **new}.items())]
        oracle.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    else:
        for name in gone:
            click.echo(f"gone: {name}")
    click.echo(", ".join(f"{n} {what}" for what, n in report.items()) + (f", {len(gone)} gone" if gone else ""))
    sys.exit(1 if action == "check" and (report["different"] or gone) else 0)


if __name__ == "__main__":
    main()
