"""Functional collectives: steps between launches in which the processes of a group exchange tensors.

PyTorch computes a collective by design, with and without `fallback="eager"`. It becomes a call of a declared function,
as in `eager_fallback.py`. Calls of such functions stay in their order at every level, and no pass merges or removes
them, so all processes issue the same collectives in the same order.

The step returns when its results can be read: on a GPU, when the stream of the call waits for them. Therefore
`wait_tensor` of the result of a collective is that result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from ....errors import UnsupportedError
from ..eager_fallback import EagerCall
from ..host_calls import import_host_call

if TYPE_CHECKING:
    from ..importer import GraphImporter

_COLLECTIVES = """
    all_reduce all_reduce_coalesced all_gather_into_tensor all_gather_into_tensor_coalesced reduce_scatter_tensor
    reduce_scatter_tensor_coalesced all_to_all_single broadcast
"""

_POINT_TO_POINT = "isend irecv batch_p2p_ops"

_functional: Any = torch.ops._c10d_functional


@dataclass(frozen=True)
class Collective(EagerCall):
    """Collective of a process group, whose results are complete when the call returns."""

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the results of the collective, after it has waited for them. Raises any error of PyTorch."""
        return pytree.tree_map_only(torch.Tensor, _functional.wait_tensor, super().compute(*args, **kwargs))

    @property
    def stem(self) -> str:
        """Beginning of the symbol name of the call's function: `all_reduce`."""
        return self.overload._schema.name.partition("::")[2]


def _import_collective(importer: GraphImporter, node: Node) -> None:
    import_host_call(importer, node, kind=Collective)


def _import_wait(importer: GraphImporter, node: Node) -> None:
    """Imports `wait_tensor`. The argument of a program may be the result of a collective that is not complete."""
    (source,) = node.all_input_nodes
    if source.op == "placeholder":
        _import_collective(importer, node)
    else:
        importer.values[node.name] = importer.values[source.name]


def _refuse_point_to_point(importer: GraphImporter, node: Node) -> None:
    """Raises UnsupportedError: a step that waits for one message would block the step that sends the next one."""
    reason = "messages from process to process are not supported inside of a program"
    raise UnsupportedError(reason, operator=str(node.target), remedy="send them outside of it, or use a collective")


def _overloads(names: str, *libraries: Any) -> list[Any]:
    packets = [getattr(library, name, None) for library in libraries for name in names.split()]
    return [packet.default for packet in packets if packet is not None]


NODES = {
    **dict.fromkeys(
        _overloads(_COLLECTIVES, _functional, torch.ops._c10d_functional_autograd)
        + _overloads("shard_dim_alltoall", torch.ops._dtensor),
        _import_collective,
    ),
    **dict.fromkeys(_overloads(_POINT_TO_POINT, _functional), _refuse_point_to_point),
    **dict.fromkeys(_overloads("wait_tensor", _functional), _import_wait),
}
"""Import function by operator."""
