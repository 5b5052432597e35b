"""The functions of libcuda that make and launch CUDA graphs of kernels.

Parameters of a node are copied when they are set, as the driver does. Later writes to their memory have no effect.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .state import DEVICE, StubError

if TYPE_CHECKING:
    from .launches import Request

INVALID_VALUE = 1


class Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2, as declared in cuda.h of CUDA 12 and 13."""

    _fields_ = (
        ("func", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("parameters", ctypes.c_uint64),
        ("extra", ctypes.c_uint64),
        ("kern", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
    )


@dataclass
class Graph:
    """A graph: the nodes in the order of their dependencies, each a kernel and its launch."""

    nodes: list[tuple[Any, Request]] = field(default_factory=list[Any])
    instantiated: bool = False


class GraphCalls:
    """The functions of libcuda for graphs. `calls` records the name and the node of each call."""

    def __init__(self) -> None:
        self.graphs: dict[int, Graph] = {}
        self.calls: list[tuple[str, int | None]] = []
        self.refuses: str | None = None
        self.made = 0

    def _new(self, graph: Graph) -> int:
        self.made += 1
        self.graphs[number := 0x1000 * self.made] = graph
        return number

    def _note(self, name: str, node: int | None = None) -> int:
        self.calls.append((name, node))
        return INVALID_VALUE if name == self.refuses else DEVICE.status()

    def cuGraphCreate(self, result: Any, flags: int) -> int:
        if flags:
            raise StubError("cuGraphCreate has no flags")
        result._obj.value = self._new(Graph())
        return self._note("cuGraphCreate")

    def cuGraphAddKernelNode_v2(self, result: Any, handle: Any, before: Any, count: Any, what: Any) -> int:
        graph = self.graphs[handle.value]
        last = [handle.value + len(graph.nodes)] if graph.nodes else []
        if [before[i] for i in range(count.value)] != last:
            raise StubError("a node of a graph that does not wait for the one before")
        graph.nodes.append(_copied(what))
        result._obj.value = handle.value + len(graph.nodes)
        return self._note("cuGraphAddKernelNode", len(graph.nodes) - 1)

    def cuGraphInstantiateWithFlags(self, result: Any, handle: Any, flags: Any) -> int:
        if flags.value:
            raise StubError("a graph that is instantiated with flags")
        source = self.graphs[handle.value]
        result._obj.value = self._new(Graph(list(source.nodes), instantiated=True))
        return self._note("cuGraphInstantiate")

    def cuGraphExecKernelNodeSetParams_v2(self, handle: Any, node: Any, what: Any) -> int:
        graph, number = self.graphs[handle.value], node.value % 0x1000 - 1
        function, request = _copied(what)
        if not graph.instantiated or function is not graph.nodes[number][0]:
            raise StubError("the kernel of a node stays what it is")
        graph.nodes[number] = function, request
        return self._note("cuGraphExecKernelNodeSetParams", number)

    def cuGraphLaunch(self, handle: Any, stream: Any) -> int:
        if DEVICE.capturing is not None:
            raise StubError("a graph is launched while another one is captured")
        graph = self.graphs[handle.value]
        if not graph.instantiated:
            raise StubError("a graph is launched that was not instantiated")
        if status := self._note("cuGraphLaunch"):
            return status
        for function, request in graph.nodes:
            function.run(request, stream.value or 0)
        return 0

    def cuGraphExecDestroy(self, handle: Any) -> int:
        del self.graphs[handle.value]
        return self._note("cuGraphExecDestroy")

    def cuGraphDestroy(self, handle: Any) -> int:
        del self.graphs[handle.value]
        return self._note("cuGraphDestroy")


def _copied(what: Any) -> tuple[Any, Request]:
    """Returns the kernel and a copy of the launch of a node, from a pointer to its parameters."""
    from .cupy_stub import Function

    node = Node.from_buffer_copy(what._obj)
    if ctypes.sizeof(what._obj) != ctypes.sizeof(Node) or node.extra or node.kern or node.context:
        raise StubError("the parameters of a node are no CUDA_KERNEL_NODE_PARAMS of a function")
    function = Function.pointers[node.func]
    request = function.request(tuple(node.grid), tuple(node.block), node.shared, node.parameters)
    return function, replace(request, arguments=tuple(map(_own, request.arguments)))


def _own(argument: Any) -> Any:
    """Returns a copy of an argument if it is a tensor map, which is a view of the caller's memory."""
    if not isinstance(argument, np.ndarray):
        return argument
    raw = np.zeros(128 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    raw[start : start + 128] = argument.view(np.uint8)
    return raw[start : start + 128].view("V128")
