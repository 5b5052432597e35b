"""Runs ONNX's own tests and exported models against the compiler, and writes `docs/onnx.md`.

    python -m benchmarks.compiler.onnx_conformance  # all tests, on the reference and on the CPU (an hour)
    python -m benchmarks.compiler.onnx_conformance --group node --executor reference --only softmax -v

A test is a model with inputs and expected outputs. Its verdict should be right, or refused with a named reason. The
exit status is 1 if a test is wrong or crashes. `--journal FILE` stores the verdicts, so that an interrupted run
continues, for `--seconds` at most; `--update` writes the page from them.

Axes, shapes and other inputs that PyTorch takes as numbers are inputs of the tests. They become constants of the model,
because a program is compiled for one value of them. All other inputs stay inputs.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

import deplodock
from deplodock.errors import REMEDIES, CompileError
from deplodock.extras.onnx.api import from_onnx
from deplodock.extras.onnx.registry import RULES, STRUCTURES, load_rules
from deplodock.extras.onnx.values import DTYPES
from deplodock.frontend.capture.arrays import to_numpy, to_torch

from .comparison import EXECUTORS, VERDICTS, crash_text, difference, table_row
from .onnx_cases import GROUPS, Case, cases, elements

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx.md"

ONLY_ON_CPU = ("light", "exports")
"""Groups of models whose arithmetic takes the interpreter minutes each."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of a test.

    Attributes:
        word: one of `VERDICTS`.
        why: the reason.
        remedy: the advice in the message of a refusal.
    """

    executor: str
    group: str
    test: str
    operator: str
    word: str
    why: str = ""
    remedy: str = ""


def baked(case: Case, names: set[str]) -> ModelProto:
    """Returns the model of a test with the values of some inputs as constants."""
    model = ModelProto()
    model.CopyFrom(case.model)
    ((inputs, _),) = case.calls
    for value, array in zip(free_inputs(case), inputs, strict=False):
        if value.name in names:
            model.graph.initializer.append(numpy_helper.from_array(elements(array), value.name))
    return model


def free_inputs(case: Case) -> list[onnx.ValueInfoProto]:
    """Returns the inputs of a model that have no initial value."""
    initialized = {i.name for i in case.model.graph.initializer}
    return [i for i in case.model.graph.input if i.name not in initialized]


def host_inputs(model: ModelProto) -> set[str]:
    """Returns the names of inputs that rules take as numbers."""
    names = set[str]()
    for node in model.graph.node:
        if (rule := RULES.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))) is not None:
            names |= {name for n, name in enumerate(node.input) if rule.is_host(n)}
    return names & {i.name for i in model.graph.input}


def verdict(case: Case, executor: str) -> Verdict:
    """Returns the verdict of a test on an executor."""
    kinds = {i.name: DTYPES.get(i.type.tensor_type.elem_type) for i in free_inputs(case)}
    integers = {name for name, dtype in kinds.items() if dtype is not None and not dtype.is_floating_point}
    names = set[str]() if case.dynamic else host_inputs(case.model)
    for constants in (names, names | integers):
        try:
            results = run(case, constants, executor)
            outcome = compare(case, results)
        except CompileError as error:
            if "expected a constant" in str(error) and constants != names | integers and not case.dynamic:
                continue
            first = next(iter((error, *error.others)))
            remedy = first.remedy or REMEDIES.get(first.kind or "", "")
            outcome = "refused", first.reason or str(first), remedy
        except Exception as error:
            outcome = "crash", crash_text(error)
        return Verdict(executor, case.group, case.name, case.operator, *outcome)
    raise AssertionError


def run(case: Case, constants: set[str], executor: str) -> list[Sequence[Any]]:
    """Returns the results of the calls of a test.

    Args:
        case: the test.
        constants: names of inputs that become constants of the model.
        executor: `reference` or `cpu`.
    """
    module = from_onnx(baked(case, constants) if constants else case.model)
    calls = [
        tuple(to_torch(elements(a)) for v, a in zip(free_inputs(case), inputs, strict=False) if v.name not in constants)
        for inputs, _ in case.calls
    ]
    sizes = module.dynamic_shapes() if case.dynamic else None
    example = module.example_inputs() if case.dynamic else calls[0]
    compiled = deplodock.compile(module, example, dynamic_shapes=sizes, target="cpu", executor=executor)
    results = [compiled(*args) for args in calls]
    return [r if isinstance(r, tuple) else (r,) for r in results]


def compare(case: Case, results: Sequence[Sequence[Any]]) -> tuple[str, str]:
    """Compares results with the expected ones. Returns the verdict and the reason.

    The test sets the tolerance. It is at least two roundings of the type of the result.
    """
    pairs = [p for r, (_, expected) in zip(results, case.calls, strict=True) for p in zip(r, expected, strict=False)]
    for n, (result, expected) in enumerate(pairs):
        actual, right = to_numpy(result), elements(expected)
        floats = actual.dtype.kind not in "iub"
        rounding = 2 * float(epsilon_of(actual.dtype)) if floats else 0.0
        if different := difference(n, actual, right, rtol=max(case.rtol, rounding), atol=max(case.atol, rounding)):
            return "wrong", different
    return "right", ""


def epsilon_of(dtype: np.dtype[Any]) -> float:
    """Returns the distance from 1 to the next number of a float type."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def operators_with_rules() -> list[str]:
    """Returns the names of all operators that have a rule, with their domain if it is not ONNX's own."""
    load_rules()
    return sorted([f"{domain}.{name}" if domain else name for domain, name in RULES] + [*STRUCTURES])


INTRODUCTION = f"""\
# ONNX

Models and tests of onnx {onnx.__version__}, compiled by `deplodock.from_onnx` and `deplodock.compile` and compared with
the expected outputs. Written by `python -m benchmarks.compiler.onnx_conformance --update`.

- `node`: the node tests of onnx, of one operator each, whose inputs and outputs are dense tensors of numbers of at
  least 8 bits. Tests that onnx makes of them by expanding functions are no part of it, nor tests of random results.
- `light`, `simple`, `pytorch-operator`, `pytorch-converted`: the models in the package onnx with data that were run.
- `exports`: a ResNet-like, a BERT-like and a GPT-like network with a batch that varies, and an LSTM, exported by
  PyTorch through `torch.export` and through TorchScript, and compared with onnxruntime for several batches.

Axes, shapes and other inputs that PyTorch takes as numbers are constants of the model.
"""


def page(verdicts: Iterable[Verdict]) -> str:
    """Returns the text of docs/onnx.md."""
    by_group, by_operator = defaultdict[tuple[str, str], list[Verdict]](list), defaultdict[str, list[Verdict]](list)
    for v in verdicts:
        by_group[v.group, v.executor].append(v)
        if v.group == "node":
            by_operator[v.operator].append(v)
    every = [v for of_group in by_group.values() for v in of_group]
    lines = [
        INTRODUCTION,
        table_row("tests", "executor", "number", *VERDICTS),
        "|---|---|---|" + "---|" * len(VERDICTS),
    ]
    for (group, executor), of_group in sorted(by_group.items(), key=lambda p: (GROUPS.index(p[0][0]), p[0][1])):
        count = Counter(v.word for v in of_group)
        lines.append(table_row(group, executor, len(of_group), *(count[word] for word in VERDICTS)))
    causes = defaultdict[tuple[str, str], set[str]](set)
    for v in every:
        if v.word != "right":
            causes[f"{v.word}: {v.why}" if v.word != "refused" else v.why, v.remedy].add(v.test)
    lines += ["", "## Refused, by cause", "", table_row("cause", "remedy", "tests"), "|---|---|---|"]
    for (why, remedy), tests in sorted(causes.items(), key=lambda p: (-len(p[1]), p[0])):
        lines.append(table_row(why, remedy, f"{len(tests)}: {', '.join(sorted(tests)[:2])}" + ", …" * (len(tests) > 2)))
    lines += ["", "## Models", "", table_row("group", "model", *EXECUTORS), "|---|---|---|---|"]
    models = defaultdict[tuple[str, str], dict[str, str]](dict)
    for v in every:
        if v.group != "node":
            models[v.group, v.test][v.executor] = v.word
    for (group, test), words in sorted(models.items(), key=lambda p: (GROUPS.index(p[0][0]), p[0][1])):
        lines.append(table_row(group, test.removeprefix("test_"), *(words.get(e, "") for e in EXECUTORS)))
    lines += ["", "## Operators with a rule", "", ", ".join(f"`{name}`" for name in operators_with_rules()) + "."]
    lines += ["", "Other operators are computed by the function with which ONNX defines them, if there is one."]
    lines += ["", "## Node tests by operator", "", table_row("operator", "tests", "right"), "|---|---|---|"]
    for operator, of_operator in sorted(by_operator.items()):
        words = defaultdict[str, set[str]](set)
        for v in of_operator:
            words[v.test].add(v.word)
        lines.append(table_row(operator, len(words), sum(w == {"right"} for w in words.values())))
    return "\n".join(lines) + "\n"


@click.command(help=__doc__)
@click.option("--group", "groups", multiple=True, type=click.Choice(GROUPS), default=GROUPS)
@click.option("--executor", "executors", multiple=True, type=click.Choice(EXECUTORS), default=EXECUTORS)
@click.option("--only", default="", help="Part of the names of the tests.")
@click.option("--journal", type=click.Path(path_type=Path), help="File of the verdicts.")
@click.option("--seconds", type=float, help="Stop after this time, with the exit status 3.")
@click.option("--update", is_flag=True, help="Write the page.")
@click.option("-v", "--verbose", is_flag=True, help="Print every verdict.")
def main(
    groups: Sequence[str],
    executors: Sequence[str],
    only: str,
    journal: Path | None,
    seconds: float | None,
    update: bool,
    verbose: bool,
) -> None:
    warnings.simplefilter("ignore")
    load_rules()
    verdicts: dict[tuple[str, str, str], Verdict] = {}
    if journal is not None and journal.exists():
        for line in journal.read_text(encoding="utf-8").splitlines():
            v = Verdict(**json.loads(line))
            verdicts[v.executor, v.group, v.test] = v
    start = time.monotonic()
    for case in cases(groups, only):
        for executor in executors:
            key = executor, case.group, case.name
            if key in verdicts or executor != "cpu" and case.group in ONLY_ON_CPU:
                continue
            if seconds is not None and time.monotonic() - start > seconds:
                sys.exit(3)
            verdicts[key] = v = verdict(case, executor)
            if journal is not None:
                with journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(v)) + "\n")
            if verbose or v.word in ("wrong", "crash"):
                click.echo(f"{executor} {case.group} {case.name}: {v.word} {v.why}")
    chosen = [v for v in verdicts.values() if v.group in groups and v.executor in executors and only in v.test]
    for group in groups:
        for executor in executors:
            count = Counter(v.word for v in chosen if v.group == group and v.executor == executor)
            if count:
                click.echo(f"{group}, {executor}: {count.total()} tests, {dict(count)}")
    if update:
        PAGE.write_text(page(verdicts.values()), encoding="utf-8")
    if any(v.word in ("wrong", "crash") for v in chosen):
        sys.exit(1)


if __name__ == "__main__":
    main()
