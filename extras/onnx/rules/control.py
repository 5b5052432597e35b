"""Operators with subgraphs: `If`, `Loop` and `Scan`. Loops are unrolled while the model is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from onnx import NodeProto

from ..registry import STRUCTURES, Subgraphs, refuse
from ..values import Env, Stored, Value, number

LONGEST_LOOP = 1024
"""Iterations of a loop that is unrolled."""


def _tracing_number(value: Value, meaning: str) -> Any:
    """Returns a value that is known during tracing as a number. Raises OnnxError for a computed tensor."""
    if isinstance(value, torch.Tensor):
        refuse(f"expected {meaning} that is constant or follows from shapes, but got a tensor that is computed")
    return number(value.array if isinstance(value, Stored) else value)  # pyright: ignore[reportArgumentType]


def evaluate_if(
    e: Subgraphs, node: NodeProto, inputs: Sequence[Value], attributes: dict[str, Any], env: Env
) -> Sequence[Value]:
    """Evaluates `If`: the branch of a known condition, or both branches with a select of their results.

    Args:
        e: evaluator of the model.
        node: the node.
        inputs: its inputs.
        attributes: its attributes by name; subgraphs are `GraphProto`s.
        env: values of the graph around it.
    """
    (condition,) = inputs
    branches = attributes["then_branch"], attributes["else_branch"]
    if not isinstance(condition, torch.Tensor):
        return e.subgraph(branches[0] if _tracing_number(condition, "a condition") else branches[1], [], env)
    then, otherwise = ([e.tensor(v) for v in e.subgraph(b, [], env)] for b in branches)
    for a, b in zip(then, otherwise, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            reason = "expected results of one type and shape from both branches, because the condition is computed"
            refuse(f"{reason}; but got {tuple(a.shape)} and {tuple(b.shape)}")
    return [torch.where(condition.reshape(()), a, b) for a, b in zip(then, otherwise, strict=True)]


def evaluate_loop(
    e: Subgraphs, node: NodeProto, inputs: Sequence[Value], attributes: dict[str, Any], env: Env
) -> Sequence[Value]:
    """Evaluates `Loop` by unrolling. The number of iterations, or the condition after each, must be known.

    Args:
        e: evaluator of the model.
        node: the node.
        inputs: its inputs.
        attributes: its attributes by name; subgraphs are `GraphProto`s.
        env: values of the graph around it.
    """
    most, condition, *carried = inputs
    count = LONGEST_LOOP + 1 if most is None else _tracing_number(most, "a number of iterations")
    goes_on = condition is None or bool(_tracing_number(condition, "a condition"))
    body, collected = attributes["body"], list[list[torch.Tensor]]()
    n = 0
    while goes_on and n < count:
        if n == LONGEST_LOOP:
            refuse(f"expected a loop of at most {LONGEST_LOOP} iterations, which are unrolled")
        step: list[Value] = [np.array(n, dtype=np.int64), np.array(True)]
        condition, *results = e.subgraph(body, [*step, *carried], env)
        carried, rows = results[: len(carried)], results[len(carried) :]
        collected.append([e.tensor(r) for r in rows])
        goes_on = bool(_tracing_number(condition, "a condition"))
        n += 1
    if not collected and len(node.output) > len(carried):
        refuse("a loop without iterations has no rows to collect")
    return [*carried, *(torch.stack(rows) for rows in zip(*collected, strict=True))]


def evaluate_scan(
    e: Subgraphs, node: NodeProto, inputs: Sequence[Value], attributes: dict[str, Any], env: Env
) -> Sequence[Value]:
    """Evaluates `Scan` by unrolling: the body is called with slices of the last inputs.

    Args:
        e: evaluator of the model.
        node: the node.
        inputs: its inputs.
        attributes: its attributes by name; subgraphs are `GraphProto`s.
        env: values of the graph around it.
    """
    count = attributes["num_scan_inputs"]
    states, sequences = [*inputs[:-count]], [e.tensor(v) for v in inputs[-count:]]
    axes = attributes.get("scan_input_axes", [0] * count)
    backward = attributes.get("scan_input_directions", [0] * count)
    steps = sequences[0].shape[axes[0]]
    if not isinstance(steps, int) or steps > LONGEST_LOOP:
        refuse(f"expected a scan of a fixed number of steps, at most {LONGEST_LOOP}, but got {steps}")
    collected = list[list[torch.Tensor]]()
    for n in range(steps):
        places = [steps - 1 - n if b else n for b in backward]
        rows = [s.select(a, p) for s, a, p in zip(sequences, axes, places, strict=True)]
        results = e.subgraph(attributes["body"], [*states, *rows], env)
        states = results[: len(states)]
        collected.append([e.tensor(r) for r in results[len(states) :]])
    outputs = len(collected[0]) if collected else 0
    to_axes = attributes.get("scan_output_axes", [0] * outputs)
    reverse = attributes.get("scan_output_directions", [0] * outputs)
    columns = [[*rows][::-1] if r else [*rows] for rows, r in zip(zip(*collected, strict=True), reverse, strict=True)]
    return [*states, *(torch.stack(rows, axis) for rows, axis in zip(columns, to_axes, strict=True))]


STRUCTURES |= {"If": evaluate_if, "Loop": evaluate_loop, "Scan": evaluate_scan}
