"""Runs ONNX's own node tests against the compiler, and writes `docs/onnx.md`.

    python -m benchmarks.compiler.onnx_conformance  # all tests, on the reference and on the CPU (an hour)
    python -m benchmarks.compiler.onnx_conformance --executor reference --only softmax -v

A test is a model of one operator with inputs and expected outputs. Its verdict should be right, or refused with a named
reason. The exit status is 1 if a test is wrong or crashes. `--journal FILE` stores the verdicts, so that an
interrupted run continues; `--update` writes the page from them.

Axes, shapes and other inputs that PyTorch takes as numbers are inputs of the tests. They become constants of the model,
because a program is compiled for one value of them. All other inputs stay inputs.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

import deplodock
from deplodock.errors import CompileError
from deplodock.extras.onnx.files import prepared
from deplodock.extras.onnx.model import OnnxModule
from deplodock.extras.onnx.registry import RULES, load_rules
from deplodock.extras.onnx.values import DTYPES
from deplodock.frontend.capture.arrays import to_numpy, to_torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx.md"
EXECUTORS = ("reference", "cpu")
VERDICTS = ("right", "refused", "wrong", "crash")

EXCLUDED = frozenset({TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128})
"""Types of elements that no numeric kernel takes."""

RANDOM = ("bernoulli", "dropout_random")
"""Words in the names of tests whose results are random."""


@dataclass(frozen=True)
class Case:
    """A test: a model of one operator, with inputs and expected outputs."""

    name: str
    model: ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float

    @property
    def operator(self) -> str:
        return next((n.op_type for n in self.model.graph.node if n.op_type != "Constant"), "Constant")


def cases(only: str = "") -> Iterator[Case]:
    """Yields the tests of one operator on tensors of numbers of at least 8 bits, without expanded functions."""
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        if case.model is None:
            continue
        graph = case.model.graph
        values = [*graph.input, *graph.output]
        plain = all(v.type.HasField("tensor_type") and _is_number(v.type.tensor_type.elem_type) for v in values)
        if plain and "_expanded" not in case.name and only in case.name and not any(w in case.name for w in RANDOM):
            for inputs, outputs in (case.data_sets or ())[:1]:
                yield Case(case.name, case.model, inputs, outputs, case.rtol, case.atol)


def _is_number(element: int) -> bool:
    return element in DTYPES and element not in EXCLUDED


def baked(case: Case, names: set[str]) -> ModelProto:
    """Returns the model of a test with the values of some inputs as constants."""
    model = ModelProto()
    model.CopyFrom(case.model)
    for value, array in zip(case.model.graph.input, case.inputs, strict=False):
        if value.name in names:
            model.graph.initializer.append(numpy_helper.from_array(elements(array), value.name))
    return model


def elements(value: Any) -> np.ndarray[Any, Any]:
    """Returns an input or an expected output of a test, which is an array or a tensor of ONNX, as an array."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def host_inputs(model: ModelProto) -> set[str]:
    """Returns the names of inputs that rules take as numbers."""
    names = set[str]()
    for node in model.graph.node:
        if (rule := RULES.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))) is not None:
            names |= {name for n, name in enumerate(node.input) if rule.is_host(n)}
    return names & {i.name for i in model.graph.input}


def verdict(case: Case, executor: str) -> tuple[str, str]:
    """Returns the verdict of a test, and the reason."""
    integers = {i.name for i in case.model.graph.input if not DTYPES[i.type.tensor_type.elem_type].is_floating_point}
    names = host_inputs(case.model)
    for constants in (names, names | integers):
        try:
            results = run(case, constants, executor)
        except CompileError as error:
            if "expected a constant" in str(error) and constants != names | integers:
                continue
            return "refused", error.reason or str(error)
        except Exception as error:
            return "crash", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return compare(case, results)
    raise AssertionError


def run(case: Case, constants: set[str], executor: str) -> Sequence[Any]:
    """Returns the results of a test.

    Args:
        case: the test.
        constants: names of inputs that become constants of the model.
        executor: `reference` or `cpu`.
    """
    file = f"{case.name}.onnx"
    module = OnnxModule(prepared(baked(case, constants), file), file)
    pairs = zip(case.model.graph.input, case.inputs, strict=False)
    args = tuple(to_torch(elements(array)) for value, array in pairs if value.name not in constants)
    compiled = deplodock.compile(module, args, target="cpu", executor=executor)
    results = compiled(*args)
    return results if isinstance(results, tuple) else (results,)


def compare(case: Case, results: Sequence[Any]) -> tuple[str, str]:
    """Compares results with the expected ones. Returns the verdict and the reason.

    The tolerance is that of the test, and at least two roundings of the type of the result.
    """
    for n, (result, expected) in enumerate(zip(results, case.outputs, strict=False)):
        actual, right = to_numpy(result), elements(expected)
        if actual.dtype != right.dtype or actual.shape != right.shape:
            return "wrong", f"result {n} is {actual.dtype}{list(actual.shape)}, not {right.dtype}{list(right.shape)}"
        floats = actual.dtype.kind not in "iub"
        rounding = 2 * float(epsilon_of(actual.dtype)) if floats else 0.0
        x, y = (a.astype(np.float64) for a in (actual, right))
        if not np.allclose(x, y, rtol=max(case.rtol, rounding), atol=max(case.atol, rounding), equal_nan=True):
            return "wrong", f"result {n} differs by {np.nanmax(np.abs(x - y)):.2g}"
    return "right", ""


def epsilon_of(dtype: np.dtype[Any]) -> float:
    """Returns the distance from 1 to the next number of a float type."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def page(verdicts: dict[str, dict[str, list[str]]], operators: dict[str, str]) -> str:
    """Returns the text of docs/onnx.md.

    Args:
        verdicts: executor -> test -> verdict, reason.
        operators: test -> operator.
    """
    lines = [
        "# ONNX's node tests",
        "",
        f"The tests of one operator each that onnx {onnx.__version__} has, on tensors of numbers of at least 8 bits:"
        " compiled by `deplodock.compile` and compared with the expected outputs. Axes, shapes and other inputs that"
        " PyTorch takes as numbers are constants of the model. Written by"
        " `python -m benchmarks.compiler.onnx_conformance --update`.",
        "",
        "| executor | tests | " + " | ".join(VERDICTS) + " |",
        "|---|---|" + "---|" * len(VERDICTS),
    ]
    for executor, of_tests in verdicts.items():
        count = Counter(v for v, _ in of_tests.values())
        lines.append(f"| {executor} | {len(of_tests)} | " + " | ".join(str(count[v]) for v in VERDICTS) + " |")
    lines += ["", "| operator | tests | right | not right, and why |", "|---|---|---|---|"]
    by_operator = defaultdict[str, list[str]](list)
    for test, operator in sorted(operators.items()):
        by_operator[operator].append(test)
    for operator, tests in sorted(by_operator.items()):
        outcomes = {t: [v[t] for v in verdicts.values() if t in v] for t in tests}
        right = [t for t, of in outcomes.items() if all(v == "right" for v, _ in of)]
        reasons = Counter(
            f"{v}: {_escaped(why)}" for t in tests for v, why in dict.fromkeys(map(tuple, outcomes[t])) if v != "right"
        )
        why = "; ".join(f"{n} {reason}" for reason, n in reasons.most_common())
        lines.append(f"| {operator} | {len(tests)} | {len(right)} | {why} |")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return " ".join(text.split())[:160].replace("|", "\\|")


@click.command(help=__doc__)
@click.option("--executor", "executors", multiple=True, type=click.Choice(EXECUTORS), default=EXECUTORS)
@click.option("--only", default="", help="Part of the names of the tests.")
@click.option("--journal", type=click.Path(path_type=Path), help="File of the verdicts.")
@click.option("--update", is_flag=True, help="Write the page.")
@click.option("-v", "--verbose", is_flag=True, help="Print every verdict.")
def main(executors: Sequence[str], only: str, journal: Path | None, update: bool, verbose: bool) -> None:
    warnings.simplefilter("ignore")
    load_rules()
    verdicts: dict[str, dict[str, list[str]]] = {executor: {} for executor in executors}
    if journal is not None and journal.exists():
        for line in journal.read_text(encoding="utf-8").splitlines():
            executor, test, *of_test = json.loads(line)
            verdicts.setdefault(executor, {})[test] = of_test
    operators: dict[str, str] = {}
    for case in cases(only):
        operators[case.name] = case.operator
        for executor in executors:
            if case.name in verdicts[executor]:
                continue
            word, why = verdict(case, executor)
            verdicts[executor][case.name] = [word, why]
            if journal is not None:
                with journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([executor, case.name, word, why]) + "\n")
            if verbose or word in ("wrong", "crash"):
                click.echo(f"{executor} {case.name}: {word} {why}")
    for executor, of_tests in verdicts.items():
        click.echo(f"{executor}: {dict(Counter(v for v, _ in of_tests.values()))}")
    if update:
        PAGE.write_text(page(verdicts, operators), encoding="utf-8")
    if any(v in ("wrong", "crash") for of_tests in verdicts.values() for v, _ in of_tests.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
