"""Compiles functions of JAX, gradients and models, compares them with JAX, and writes `docs/jax.md`.

    python -m benchmarks.compiler.jax_conformance  # all programs, on the reference and on the CPU (half an hour)
    python -m benchmarks.compiler.jax_conformance --executor reference --only softmax -v

Each program should be right, or refused with a named reason. The exit status is 1 if a program is wrong or crashes.
`--journal FILE` stores the verdicts, so that an interrupted run continues; `--update` writes the page from them.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np

import deplodock
from deplodock.errors import CompileError

from .comparison import EXECUTORS, VERDICTS, crash_text, difference, table_row
from .jax_models import GRADIENTS, MODELS
from .jax_programs import FUNCTIONS, Program

PAGE = Path(__file__).resolve().parents[2] / "docs" / "jax.md"
GROUPS: Mapping[str, Mapping[str, Program]] = {
    "Functions": FUNCTIONS,
    "Gradients": GRADIENTS,
    "Models": MODELS,
}
"""Heading of a table -> its programs."""

RTOL, ATOL = 1e-3, 1e-6
"""Tolerances of floats, as of ONNX's node tests; at least two roundings of a narrower type."""

Outcome = tuple[str, str]
"""Verdict and reason."""


def verdict(program: Program, executor: str) -> Outcome:
    """Returns the verdict of a program, and the reason."""
    function, args = program
    expected = jax.jit(function)(*args)
    try:
        result = deplodock.from_jax(function, *args, target="cpu", executor=executor)(*args)
    except CompileError as error:
        return "refused", "; ".join(filter(None, (f"{error.operator}: {error.reason}", error.remedy)))
    except Exception as error:
        return "crash", crash_text(error)
    return compare(result, expected, rounding_of([args, expected]))


DIFFERENCES = (
    "XLA takes denormal floats for zero on the CPU, and we do not: `x.astype(bool)` of 1e-40 is true here, as in NumPy,"
    " and false in XLA. No program of this list has one."
)


def rounding_of(arrays: Any) -> float:
    """Returns two roundings of the narrowest float type among arrays, which may be the type of a value in between."""
    elements = [leaf.dtype for leaf in jax.tree.leaves(arrays) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return max((2 * float(jnp.finfo(element).eps) for element in elements), default=0.0)


def compare(result: Any, expected: Any, rounding: float) -> Outcome:
    """Compares the leaves of a result with the expected ones. Returns the verdict and the reason.

    Args:
        result: arrays, nested in tuples, lists and dictionaries.
        expected: the result of JAX.
        rounding: least tolerance of floats.
    """
    (leaves, structure), (right_leaves, right_structure) = jax.tree.flatten(result), jax.tree.flatten(expected)
    if structure != right_structure:
        return "wrong", f"the result is {structure}, not {right_structure}"
    for n, (leaf, right) in enumerate(zip(leaves, right_leaves, strict=True)):
        actual, right = np.asarray(leaf), np.asarray(right)
        floats = jnp.issubdtype(actual.dtype, jnp.floating)
        tolerances = {"rtol": max(RTOL, rounding), "atol": max(ATOL, rounding)} if floats else {"rtol": 0, "atol": 0}
        if different := difference(n, actual, right, **tolerances):
            return "wrong", different
    return "right", ""


def programs(only: str) -> Iterator[tuple[str, Program]]:
    """Yields the programs whose names contain `only`, with names that are unique among the groups."""
    for group, members in GROUPS.items():
        for name, program in members.items():
            if only in name:
                yield f"{group}: {name}", program


def page(verdicts: Mapping[str, Mapping[str, Outcome]]) -> str:
    """Returns the text of docs/jax.md. `verdicts`: executor -> program -> outcome."""
    lines = [
        "# JAX programs",
        "",
        f"Functions of `jax.numpy`, `jax.lax` and `jax.nn`, gradients by `jax.grad`, and models: compiled by"
        f" `deplodock.from_jax` and compared with JAX {jax.__version__}. Most programs return several results, one for"
        " each variant of an operation. Written by `python -m benchmarks.compiler.jax_conformance --update`.",
        "",
        "| programs | executor | number | " + " | ".join(VERDICTS) + " |",
        "|---|---|---|" + "---|" * len(VERDICTS),
    ]
    for group, members in GROUPS.items():
        for executor, of_programs in verdicts.items():
            count = Counter(of_programs[p][0] for name in members if (p := f"{group}: {name}") in of_programs)
            numbers = " | ".join(str(count[v]) for v in VERDICTS)
            lines.append(f"| {group} | {executor} | {len(members)} | {numbers} |")
    lines += [
        "",
        "## Differences",
        "",
        DIFFERENCES,
        "",
        "## Refused",
        "",
        "| program | cause, and remedy |",
        "|---|---|",
    ]
    reasons = {p: why for of_programs in verdicts.values() for p, (word, why) in of_programs.items() if word != "right"}
    lines += [table_row(p.partition(": ")[2], why, most=300) for p, why in reasons.items()]
    for group, members in GROUPS.items():
        right = [n for n in members if all(v.get(f"{group}: {n}", ("", ""))[0] == "right" for v in verdicts.values())]
        lines += ["", f"## {group}", "", "; ".join(right) + "."]
    return "\n".join(lines) + "\n"


@click.command(help=__doc__)
@click.option("--executor", "executors", multiple=True, type=click.Choice(EXECUTORS), default=EXECUTORS)
@click.option("--only", default="", help="Part of the names of the programs.")
@click.option("--journal", type=click.Path(path_type=Path), help="File of the verdicts.")
@click.option("--update", is_flag=True, help="Write the page.")
@click.option("-v", "--verbose", is_flag=True, help="Print every verdict.")
def main(executors: Sequence[str], only: str, journal: Path | None, update: bool, verbose: bool) -> None:
    warnings.simplefilter("ignore")
    verdicts: dict[str, dict[str, Outcome]] = {executor: {} for executor in executors}
    if journal is not None and journal.exists():
        for line in journal.read_text(encoding="utf-8").splitlines():
            executor, name, word, why = json.loads(line)
            verdicts.setdefault(executor, {})[name] = word, why
    for name, program in programs(only):
        for executor in executors:
            if name in verdicts[executor]:
                continue
            word, why = verdicts[executor][name] = verdict(program, executor)
            if journal is not None:
                with journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([executor, name, word, why]) + "\n")
            if verbose or word in ("wrong", "crash"):
                click.echo(f"{executor} {name}: {word} {why}")
    for executor, of_programs in verdicts.items():
        click.echo(f"{executor}: {dict(Counter(word for word, _ in of_programs.values()))}")
    if update:
        PAGE.write_text(page(verdicts), encoding="utf-8")
    if any(word in ("wrong", "crash") for of_programs in verdicts.values() for word, _ in of_programs.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
