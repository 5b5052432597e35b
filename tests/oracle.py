"""Whether the printed CUDA is what it was: the oracle of changes that should not change it.

    python tests/oracle.py check                    # compare with tests/data/oracle.json
    python tests/oracle.py write --texts FOLDER     # take what is printed now as the oracle, and keep the texts
    python tests/oracle.py check --texts FOLDER --only softmax    # show diffs against texts that were kept

Its programs are the 84 shapes in f32 and bf16 for every target, the programs of `tests/programs` and
`tests/data/programs.txt`, and a decoder layer of each of the two models at full size. Each is kept as two hashes: of
the text, and of the text without comments, whose identifiers are numbered in the order in which they appear. A check
says of each program `identical`, `names` (identical up to comments and identifiers), `different`, or `new`; of the 84
shapes it also says where the predicted time changed. The exit code is 1 if a text is different or gone.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
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
ORACLE = TESTS / "data" / "oracle.json"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
HAND_WRITTEN = {
    "loop_nests": "loop-to-tile,tile-to-kernel",
    "large_nests": "loop-to-tile,tile-to-kernel",
    "kernels": "cse,dce,kernel-allocate-shared,kernel-insert-barriers",
}
"""File of `tests/programs` -> the passes from there to the kernel level."""

Texts = dict[str, tuple[str, float | None]]
"""Name -> CUDA, and the predicted seconds where a planner was asked."""


def subjects() -> list[tuple[Callable[[str], Texts], str]]:
    """What makes texts, each with its argument: a unit of work for a process."""
    from programs.people import PROGRAMS
    from seed84 import NAMES

    lines = (TESTS / "data" / "programs.txt").read_text(encoding="utf-8").splitlines()
    layers = [f"{model}/{dtype}" for model in ("qwen2.5-7b", "tinyllama") for dtype in DTYPES]
    return [
        *((_layer, name) for name in layers),
        *((_shape, f"{name}/{dtype}") for name in NAMES for dtype in DTYPES),
        *((_people, name) for name in PROGRAMS),
        *((_line, code) for code in lines),
        *((_hand_written, name) for name in HAND_WRITTEN),
    ]


def _compile(name: str, function: Any, args: Any, target: str, predicted: bool = False, **options: Any) -> Texts:
    from deplodock.frontend.capture.export import capture
    from deplodock.frontend.compilation import Compilation

    compilation = Compilation(capture(function, args, **options).module, target)
    return {name: (compilation.cuda, _predicted(compilation, target) if predicted else None)}


def _predicted(compilation: Any, target: str) -> float:
    """What the planning model expects of all kernels together, in seconds."""
    from deplodock.dialects import loop
    from deplodock.dialects.target import get_target
    from deplodock.passes.analysis.nest_schedule import schedule_of
    from deplodock.passes.planning.cost_model import Model
    from deplodock.passes.planning.nest_info import NestInfo

    nests = [op for op in compilation.scheduled().walk() if isinstance(op, loop.NestOp)]
    plans = [(nest, schedule_of(nest)) for nest in nests]
    return sum(Model(NestInfo(n), get_target(target)).predict(s).seconds for n, s in plans if s is not None)


def _shape(name: str) -> Texts:
    from seed84 import make_case

    from deplodock.dialects.target import TARGETS

    shape, dtype = name.split("/")
    case = make_case(shape, DTYPES[dtype])
    inputs = [torch.empty(s, dtype=case.dtype) for s in case.shapes.values()]
    found: Texts = {}
    for target in TARGETS:
        found |= _compile(f"{name}/{target}", case.function, inputs, target, True, names=list(case.shapes))
    return found


def _layer(name: str) -> Texts:
    from layers import make_layer

    model, dtype = name.split("/")
    layer = make_layer(model, DTYPES[dtype], small=False)
    hidden = torch.empty((1, 512, layer.config.hidden_size), dtype=DTYPES[dtype])
    return _compile(f"layer/{name}", layer, [hidden], "sm_90a", True)


def _people(name: str) -> Texts:
    from programs.people import PROGRAMS

    torch.manual_seed(0)
    function, args = PROGRAMS[name]()
    return _compile(f"people/{name}", function, args, "sm_90a")


def _line(code: str) -> Texts:
    from deplodock.tools.reports import load

    return {f"-c {code}": (load(None, code, "sm_90a", 0).compilation.cuda, None)}


def _hand_written(name: str) -> Texts:
    from deplodock.backend.cuda.printer import print_cuda
    from deplodock.dialects.support.parsing import make_context, parse_module
    from deplodock.passes.pass_manager import run_passes
    from deplodock.passes.pipelines import parse_passes

    texts: Texts = {}
    for i, text in enumerate((TESTS / "programs" / f"{name}.mlir").read_text(encoding="utf-8").split("// -----")):
        ctx = make_context()
        module = parse_module(ctx, text, f"{name}.mlir")
        run_passes(ctx, module, parse_passes(HAND_WRITTEN[name], {"target": ("sm_90a",)}))
        texts[f"{name}/{i}"] = (print_cuda(module), None)
    return texts


def _work(subject: tuple[Callable[[str], Texts], str]) -> Texts:
    make, argument = subject
    torch.set_num_threads(1)
    try:
        return make(argument)
    except CompileError as refused:
        return {f"{make.__name__.strip('_')}/{argument}": (f"refused: {refused}", None)}


def normal(text: str) -> str:
    """The text without comments and line breaks, its identifiers numbered in the order in which they appear."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    numbers: dict[str, str] = {}
    text = re.sub(r"\b[A-Za-z_]\w*", lambda m: numbers.setdefault(m[0], f"v{len(numbers)}"), text)
    return " ".join(text.split())


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _made(only: str, jobs: int) -> Iterator[tuple[str, str, float | None]]:
    todo = [s for s in subjects() if only in f"{s[0].__name__}/{s[1]}"]
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
def main(action: str, only: str, texts: Path | None, jobs: int) -> None:
    """Check the printed CUDA against the oracle, or make the oracle anew."""
    old: dict[str, Any] = json.loads(ORACLE.read_text(encoding="utf-8")) if ORACLE.exists() else {}
    new: dict[str, Any] = {}
    report: Counter[str] = Counter()
    for name, text, seconds in _made(only, jobs):
        new[name] = [_hash(text), _hash(normal(text)), *([] if seconds is None else [round(seconds * 1e6, 3)])]
        before = old.get(name)
        same = ("new" if before is None else "identical" if before[0] == new[name][0]
                else "names" if before[1] == new[name][1] else "different")  # fmt: skip
        report[same] += 1
        file = None if texts is None else texts / f"{_hash(name)}.cu"
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
        ORACLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    else:
        for name in gone:
            click.echo(f"gone: {name}")
    click.echo(", ".join(f"{n} {what}" for what, n in report.items()) + (f", {len(gone)} gone" if gone else ""))
    sys.exit(1 if action == "check" and (report["different"] or gone) else 0)


if __name__ == "__main__":
    main()
