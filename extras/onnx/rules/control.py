"""Operators with subgraphs: `If`, `Loop` and `Scan`. Loops are unrolled while the model is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..registry import STRUCTURES, ControlNode, refuse
from ..values import Stored, Value, number

LONGEST_LOOP = 1024
"""Largest number of iterations of a loop that is unrolled."""


def _tracing_number(value: Value, meaning: str) -> Any:
    """Returns a value that is known during tracing as a number. Raises OnnxError for a computed tensor."""
    if isinstance(value, torch.Tensor):
        reason = f"expected {meaning} that is constant or follows from shapes, but got a tensor that is computed"
        refuse(f"{reason}; make it a constant of the model")
    return number(value.array if isinstance(value, Stored) else value)  # pyright: ignore[reportArgumentType]


def evaluate_if(node: ControlNode) -> Sequence[Value]:
    """Evaluates `If`: the branch of a known condition, or both branches with a select of their results."""
    (condition,) = node.inputs
    branches = "then_branch", "else_branch"
    if not isinstance(condition, torch.Tensor):
        return node.subgraph(branches[0] if _tracing_number(condition, "a condition") else branches[1], [])
    then, otherwise = ([node.evaluator.tensor(v) for v in node.subgraph(branch, [])] for branch in branches)
    if not len(then) == len(otherwise) == node.outputs:
        refuse(f"expected branches with {node.outputs} results, but they have {len(then)} and {len(otherwise)}")
    for a, b in zip(then, otherwise, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            reason = "expected results of one type and shape from both branches, because the condition is computed"
            refuse(f"{reason}; but got {tuple(a.shape)} and {tuple(b.shape)}")
    return [torch.where(condition.reshape(()), a, b) for a, b in zip(then, otherwise, strict=True)]


def evaluate_loop(node: ControlNode) -> Sequence[Value]:
    """Evaluates `Loop` by unrolling. The number of iterations, or the condition after each, must be known."""
    most, condition, *carried = node.inputs
    count = LONGEST_LOOP + 1 if most is None else _tracing_number(most, "a number of iterations")
    goes_on = condition is None or bool(_tracing_number(condition, "a condition"))
    collected = list[list[torch.Tensor]]()
    n = 0
    while goes_on and n < count:
        node.evaluator.budget.take_iteration()
        if n == LONGEST_LOOP:
            refuse(f"expected a loop of at most {LONGEST_LOOP} iterations, which are unrolled")
        step: list[Value] = [np.array(n, dtype=np.int64), np.array(True)]
        condition, *results = node.subgraph("body", [*step, *carried])
        carried, rows = results[: len(carried)], results[len(carried) :]
        collected.append([node.evaluator.tensor(r) for r in rows])
        goes_on = bool(_tracing_number(condition, "a condition"))
        n += 1
    if not collected and node.outputs > len(carried):
        refuse("a loop without iterations has no rows to collect")
    return [*carried, *(torch.stack(rows) for rows in zip(*collected, strict=True))]


def evaluate_scan(node: ControlNode) -> Sequence[Value]:
    """Evaluates `Scan` by unrolling: the body is called with slices of the last inputs."""
    count = node.attributes["num_scan_inputs"]
    if not 0 < count <= len(node.inputs):
        refuse(f"expected num_scan_inputs from 1 to {len(node.inputs)}, the number of inputs, but got {count}")
    states, sequences = [*node.inputs[:-count]], [node.evaluator.tensor(v) for v in node.inputs[-count:]]
    axes = node.attributes.get("scan_input_axes", [0] * count)
    backward = node.attributes.get("scan_input_directions", [0] * count)
    steps = sequences[0].shape[axes[0]]
    if not isinstance(steps, int) or steps > LONGEST_LOOP:
        refuse(f"expected a scan of a fixed number of steps, at most {LONGEST_LOOP}, but got {steps}")
    collected = list[list[torch.Tensor]]()
    for n in range(steps):
        node.evaluator.budget.take_iteration()
        places = [steps - 1 - n if b else n for b in backward]
        rows = [s.select(a, p) for s, a, p in zip(sequences, axes, places, strict=True)]
        results = node.subgraph("body", [*states, *rows])
        states = results[: len(states)]
        collected.append([node.evaluator.tensor(r) for r in results[len(states) :]])
    outputs = len(collected[0]) if collected else 0
    to_axes = node.attributes.get("scan_output_axes", [0] * outputs)
    reverse = node.attributes.get("scan_output_directions", [0] * outputs)
    columns = [[*rows][::-1] if r else [*rows] for rows, r in zip(zip(*collected, strict=True), reverse, strict=True)]
    return [*states, *(torch.stack(rows, axis) for rows, axis in zip(columns, to_axes, strict=True))]


STRUCTURES |= {"If": evaluate_if, "Loop": evaluate_loop, "Scan": evaluate_scan}
