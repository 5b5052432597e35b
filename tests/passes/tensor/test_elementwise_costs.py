"""The fast cost of an elementwise kernel, from sets of operations, equals the cost of its graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.growing_programs import KINDS
from torch import Tensor
from xdsl.context import Context

from deplodock.dialects.support.calls import main_function
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation
from deplodock.passes.tensor.fusion.candidates import candidates, required_values
from deplodock.passes.tensor.fusion.search import Search
from deplodock.target.attribute import get_target


def broadcast_and_masked(x: Tensor, y: Tensor) -> Tensor:
    """A program with a broadcast row, a mask, a view and a sum."""
    z = torch.where(x > 0, x.t().sqrt(), y.exp() + torch.rsqrt(x)) * y.sum(0)
    return (z.int() // 3).float() + torch.arange(8) + z


PROGRAMS: dict[str, Callable[[], tuple[Callable[..., object], tuple[Tensor, ...]]]] = {
    **{
        kind: lambda kind=kind: KINDS[kind](3)
        for kind in ("clenshaw_recurrence", "powers_by_squaring", "casts_between", "chain_without_repeats")
    },
    "broadcast_and_masked": lambda: (broadcast_and_masked, (torch.rand(8, 8), torch.rand(8, 8))),
}


@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_costs_agree_with_those_of_graphs(name: str, target: str) -> None:
    function, args = PROGRAMS[name]()
    module = Compilation(capture(function, args).module, target=target, record="none").at("tensor")
    main = main_function(module)
    search = Search(Context(), main, candidates(main), required_values(main), get_target(target))
    compared = 0

    def both(root: int, inlined: int) -> tuple[float, int]:
        nonlocal compared
        kernel = search.kernel(root, inlined)
        if search.structure.is_elementwise(root, inlined):
            assert search.structure.elementwise_cost(root, inlined) == pytest.approx(
                (kernel.time(), kernel.value_count)
            )
            compared += 1
        return kernel.time(), kernel.value_count

    search.cost = both  # pyright: ignore[reportAttributeAccessIssue]
    search.run()
    assert compared > 5
