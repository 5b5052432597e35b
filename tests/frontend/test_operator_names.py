"""Tables of operators by name, for versions of PyTorch that lack some of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from deplodock.frontend.capture.decompositions import table
from deplodock.frontend.capture.decompositions.operators import by_operator, operator_named, operators_named

aten: Any = torch.ops.aten


def test_operators_and_overloads() -> None:
    assert operator_named("relu") is aten.relu
    assert operator_named("add.Tensor") is aten.add.Tensor


@pytest.mark.parametrize("name", ["operator_of_another_version", "operator_of_another_version.default", "relu.other"])
def test_unknown_names_are_skipped(name: str) -> None:
    assert operator_named(name) is None
    assert operators_named([name, "relu.default"]) == (aten.relu.default,)
    assert by_operator({name: 1, "relu.default": 2}) == {aten.relu.default: 2}


def test_table_without_a_decomposition_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 has no decomposition of the gradient of max pooling. The table works without it."""
    lacking = aten.max_pool2d_with_indices_backward
    make = table.pytorchs

    def without(operators: Iterable[Any]) -> dict[Any, Any]:
        return {k: v for k, v in make([*operators]).items() if k not in (lacking, lacking.default)}

    monkeypatch.setattr(table, "pytorchs", without)
    monkeypatch.setitem(table.DECOMPOSITIONS, "operator_of_another_version.default", lambda x: x)
    made = table.decomposition_table.__wrapped__()
    assert aten.gelu.default in made
    assert made[aten.lerp.Scalar](torch.ones(2, dtype=torch.int64), 1, 2) is NotImplemented


def test_operators_that_are_composite_on_some_devices() -> None:
    """For devices without a kernel PyTorch decomposes an operator itself; otherwise the table must decompose it."""
    composite, others = table.tables()
    assert aten._fused_rms_norm.default in others
    assert [
        t for t, made in composite.items() if made is not table._special_op_to_preserve_cia and t not in others
    ] == []
