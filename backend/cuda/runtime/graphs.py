"""A CUDA graph of all launches of a call: the host launches one thing, and tells only what lies elsewhere than before.

The graph is made of kernel nodes, one behind the other, not captured from a stream: so nothing has to run before, and
every node is known. Where an argument or a result lies elsewhere, the parameters of the nodes that use it are set anew
(`cuGraphExecKernelNodeSetParams`), among them tensor maps; nothing is copied to a static place. Launches that are under
way are not affected by that, and the driver runs those of one graph after each other, so they share scratch memory, on
whatever streams they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from ....errors import ExecutionError
from ...host.launch_plan import EagerStep
from .driver import advice, library
from .prepared import Encode, Frame, PreparedLaunches


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        *((f"{kind}Dim{axis}", ctypes.c_uint) for kind in ("grid", "block") for axis in "XYZ"),
        ("sharedMemBytes", ctypes.c_uint),
        ("kernelParams", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    )


@dataclass(frozen=True, eq=False)
class Moving:
    """Calls of which only these `arguments`, by their numbers, may lie elsewhere from one to the other; `places` are
    the addresses of all of them in one such call."""

    arguments: tuple[int, ...]
    places: tuple[int, ...]


def all_addresses(addresses: Sequence[int], like: Moving | None) -> Sequence[int]:
    """Those of all arguments, where `addresses` are only of those in which calls that are `like` one another differ."""
    if like is None:
        return addresses
    places = list(like.places)
    for argument, address in zip(like.arguments, addresses):
        places[argument] = address
    return places


class LaunchGraph:
    """The launches of a program for certain shapes as a graph. `scratch` is a tensor of bytes that is the arena, or
    None; it is the graph's from now on. `stream` is the one on which it was allocated, of torch.

    Raises ExecutionError where the driver refuses it, or if something is left to PyTorch.
    """

    def __init__(
        self, launches: PreparedLaunches, addresses: Sequence[int], scratch: Any, stream: Any, encode: Encode
    ) -> None:
        self._launches, self._encode, self._scratch = launches, encode, scratch
        self._lock, self._streams = Lock(), {stream.cuda_stream}
        self._frame = Frame(launches)
        self._known = list(addresses)
        self._like: Moving | None = None
        self._frame.fill(launches, [*addresses, 0 if scratch is None else scratch.data_ptr()], encode)
        self._graph, self._run = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuGraphCreate", ctypes.byref(self._graph), 0)
        self._nodes: list[tuple[ctypes.c_void_p, KernelNode]] = []
        for step in self._frame.steps:
            if isinstance(step, EagerStep):
                raise ExecutionError(f"{step.function} is left to PyTorch", operator="cuda")
            before = (ctypes.c_void_p * 1)(self._nodes[-1][0].value) if self._nodes else None
            (function, *sizes), parameters = step
            node, what = ctypes.c_void_p(), KernelNode(function, *sizes, parameters)
            how = (self._graph, before, ctypes.c_size_t(len(self._nodes[:1])), ctypes.byref(what))
            call("cuGraphAddKernelNode_v2", ctypes.byref(node), *how)
            self._nodes.append((node, what))
        call("cuGraphInstantiateWithFlags", ctypes.byref(self._run), self._graph, ctypes.c_ulonglong(0))

    def launch(self, addresses: Sequence[int], stream: Any, like: Moving | None = None) -> bool:
        """Launch it on a stream of torch, for arguments that lie at `addresses`; False if it was closed meanwhile.
        Calls that are `like` one another differ in nothing but what that says: `addresses` are of that only.

        Raises ExecutionError if the driver refuses it."""
        with self._lock:
            if not self._run:
                return False
            old, known = self._known, self._like
            if like is not None and like is known:
                places = zip(like.arguments, addresses)
            else:
                places = enumerate(all_addresses(addresses, like))
            try:
                self._move([(n, address) for n, address in places if old[n] != address])
            except BaseException:  # then nothing is known of where they lie
                self._like, self._known = None, [-1] * len(old)
                raise
            self._like = like
            handle = stream.cuda_stream
            if handle not in self._streams:
                self._streams.add(handle)
                if self._scratch is not None:
                    self._scratch.record_stream(stream)
            call("cuGraphLaunch", self._run, ctypes.c_void_p(handle))
        return True

    def _move(self, moved: Sequence[tuple[int, int]]) -> None:
        """Set the parameters of all nodes that use arguments which lie elsewhere now: their numbers and addresses."""
        nodes: set[int] = set()
        for argument, address in moved:
            nodes |= self._frame.move(self._launches, argument, address, self._encode)
            self._known[argument] = address
        for number in sorted(nodes):
            node, what = self._nodes[number]
            call("cuGraphExecKernelNodeSetParams_v2", self._run, node, ctypes.byref(what))

    def close(self) -> None:
        """Give it back to the driver; launches under way end before."""
        with self._lock:
            run, self._run = self._run, ctypes.c_void_p()
            graph, self._graph = self._graph, ctypes.c_void_p()
            if run:
                library().cuGraphExecDestroy(run)
            if graph:
                library().cuGraphDestroy(graph)
            self._scratch = None

    def __del__(self) -> None:
        with suppress(Exception):  # of one that could not be made, or at the end of the process
            self.close()


def call(name: str, *arguments: Any) -> None:
    """Call the driver. Raises ExecutionError for a status that is not success."""
    if status := getattr(library(), name)(*arguments):
        raise ExecutionError(f"{name} fails: error {status}{advice(status)}", operator="cuda")
