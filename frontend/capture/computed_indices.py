"""Places in a tensor that another tensor says, where PyTorch makes a number of it.

`x[t]` with an integer tensor `t` of no dimensions is traced as `x.select(0, t.item())`: here that becomes advanced
indexing, `index(x, [t])`, and a write there `index_put(x, [t], values)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph

from .complex.pairs import Emitter

aten: Any = torch.ops.aten


def index_by_tensors(graph: Graph) -> None:
    """Replace every read and write of a slice at a number from a tensor by one at that tensor. Other uses of the number
    stay, and are refused by whoever does not know it. The graph changes nothing in place."""
    for number in list(graph.nodes):
        if number.target is not aten._local_scalar_dense.default or not isinstance(number.meta["val"], torch.SymInt):
            continue
        if number.args[0].meta["val"].dtype == torch.uint8:
            continue  # as an index it is a mask, which PyTorch's exporter takes for a number
        for user in list(number.users):
            if user.target is aten.select.int and user.args[2] is number:
                x, dim, values = user.args[0], user.args[1], ()
            elif user.target is aten.select_scatter.default and user.args[3] is number:
                x, dim, values = user.args[0], user.args[2], (user.args[1],)
            else:
                continue
            place = Emitter(graph).inline(user, _without_dimensions, number.args[0])
            user.target = aten.index_put.default if values else aten.index.Tensor
            user.args = (x, [*[None] * (dim % x.meta["val"].dim()), place], *values)
        if not number.users:
            graph.erase_node(number)


def _without_dimensions(place: torch.Tensor) -> torch.Tensor:
    """A tensor of one element as one of i64 without dimensions."""
    place = aten.view.default(place, []) if place.dim() else place
    return place if place.dtype == torch.int64 else aten._to_copy.default(place, dtype=torch.int64)
