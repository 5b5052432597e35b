"""Prepared launches, and CUDA graphs of all launches of a call.

The driver takes the parameters of a kernel as an array of addresses, and copies the parameters at the launch. The
parameters of all launches of a call are in one array of 64-bit words: pointers first, then sizes. Sizes never change. A
call sets the pointers.

Each pointer points into a memory. The memories are numbered: the arguments of the call, then the arena, which contains
all scratch buffers.

A graph is built of kernel nodes, not captured from a stream, so that its nodes are known. If an argument or a result
has moved, the parameters of the nodes that use it are set (`cuGraphExecKernelNodeSetParams`), including TMA
descriptors. Nothing is copied to static memory. Running launches are not affected. The driver serialises the launches
of one graph, so they share scratch memory on all streams.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from ....errors import ExecutionError
from ...host.launch_plan import EagerStep, Launch, LaunchPlan, TensorMap
from .driver import advice, encode, library

KEPT_MAPS_OF_CALL = 4096
"""Largest number of encoded TMA descriptors that a `Frame` caches."""

Head = tuple[int, ...]
"""First arguments of `cuLaunchKernel`: function, grid (3), block (3) and bytes of shared memory."""


class Frame:
    """Kernel parameters of one call. Concurrent calls have different frames.

    Attributes:
        words: pointers, then sizes.
        pointers: the part of `words` with the pointers.
        parameters: address of each parameter, for all launches in order.
        steps: launches as (head, address of the first parameter), and steps of PyTorch.
        maps: (parameter, address) -> encoded TMA descriptor and its address.
    """

    def __init__(self, launches: PreparedLaunches) -> None:
        self._launches = launches
        self.words = np.concatenate([np.zeros(len(launches.memory), np.int64), launches.sizes])
        self.pointers = self.words[: len(launches.memory)]
        self.parameters = self.words.ctypes.data + 8 * launches.order
        first = self.parameters.ctypes.data
        self.steps = [s if isinstance(s, EagerStep) else (s[0], first + 8 * s[1]) for s in launches.steps]
        self.maps: dict[tuple[int, int], tuple[Any, int]] = {}

    def fill(self, addresses: Sequence[int], scratch: Any) -> None:
        """Sets all pointers and TMA descriptors.

        Args:
            addresses: addresses of all arguments.
            scratch: the arena, a tensor or None.
        """
        places = np.array([*addresses, 0 if scratch is None else scratch.data_ptr()], np.int64)
        np.add(places[self._launches.memory], self._launches.begins, out=self.pointers)
        if len(self.maps) > KEPT_MAPS_OF_CALL:
            self.maps.clear()
        for described in self._launches.maps:
            self._describe(*described)

    def move(self, memory: int, address: int) -> set[int]:
        """Sets the address of memory number `memory`. Returns the numbers of the launches that use the memory."""
        uses = self._launches.uses[memory]
        if len(self.maps) > KEPT_MAPS_OF_CALL:
            self.maps = {key: encoded for key, encoded in self.maps.items() if self.parameters[key[0]] == encoded[1]}
        for pointer, begin in uses.pointers:
            self.pointers[pointer] = address + begin
        for described in uses.maps:
            self._describe(*described)
        return uses.steps

    def _describe(self, parameter: int, pointer: int, tensor_map: TensorMap) -> None:
        """Sets a parameter to the encoded TMA descriptor of the memory that a pointer points to.

        Args:
            parameter: number of the parameter.
            pointer: number of the pointer.
            tensor_map: the descriptor.
        """
        address = int(self.pointers[pointer])
        encoded = self.maps.get((parameter, address))
        if encoded is None:
            record = encode(tensor_map, address)
            encoded = self.maps[parameter, address] = record, record.ctypes.data
        self.parameters[parameter] = encoded[1]


@dataclass
class Uses:
    """Uses of one memory.

    Attributes:
        pointers: (number of the pointer, offset in bytes).
        maps: (parameter, pointer, descriptor) of each TMA descriptor.
        steps: numbers of the launches that use the memory.
    """

    pointers: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    maps: list[tuple[int, int, TensorMap]] = field(default_factory=list[tuple[int, int, TensorMap]])
    steps: set[int] = field(default_factory=set[int])


class PreparedLaunches:
    """Steps of a launch plan for one set of shapes, prepared for fast calls.

    Args:
        plan: the launch plan.
        functions: addresses of the loaded kernels.

    Attributes:
        memory: number of the memory of each pointer.
        begins: offset in bytes of each pointer in its memory.
        order: index of each parameter in the words of a frame.
        maps: (parameter, pointer, descriptor) for TMA descriptors.
        uses: uses of each memory.
        steps: launches as (head, index of the first parameter), and steps of PyTorch.
        called: whether the steps have run before.
    """

    def __init__(self, plan: LaunchPlan, functions: Mapping[str, int]) -> None:
        self.plan = plan
        places = [(i, 0) for i in range(plan.arguments)]
        places += [(plan.arguments, b.offset) for b in plan.buffers[plan.arguments :]]
        pointers, sizes, order = list[tuple[int, int]](), list[int](), list[tuple[int, bool]]()
        self.maps: list[tuple[int, int, TensorMap]] = []
        self.steps: list[EagerStep | tuple[Head, int]] = []
        self.uses = [Uses() for _ in range(plan.arguments + 1)]
        for step in plan.steps:
            if isinstance(step, EagerStep):
                self.steps.append(step)
                continue
            assert isinstance(step, Launch)
            head = (functions[step.kernel], *_three(step.blocks), *_three(step.threads), step.shared)
            self.steps.append((head, len(order)))
            first = len(pointers)
            for number, begin in zip(step.buffers, step.begins(), strict=True):
                order.append((len(pointers), False))
                memory, offset = places[number]
                self.uses[memory].pointers.append((len(pointers), offset + begin))
                self.uses[memory].steps.add(len(self.steps) - 1)
                pointers.append((memory, offset + begin))
            for tensor_map in step.maps:
                self.maps.append((len(order), first + tensor_map.argument, tensor_map))
                self.uses[pointers[first + tensor_map.argument][0]].maps.append(self.maps[-1])
                order.append((0, False))
            for value in step.values:
                order.append((len(sizes), True))
                sizes.append(value)
        self.memory = np.array([m for m, _ in pointers], np.int64)
        self.begins = np.array([b for _, b in pointers], np.int64)
        self.sizes = np.array(sizes, np.int64)
        self.order = np.array([word + is_size * len(pointers) for word, is_size in order], np.int64)
        self._free: list[Frame] = []
        self.called = False

    def acquire(self) -> Frame:
        """Returns a frame that no other call uses until `release`."""
        try:
            return self._free.pop()
        except IndexError:
            return Frame(self)

    def release(self, frame: Frame) -> None:
        """Makes a frame available to other calls. The driver has copied the parameters at the launches."""
        self._free.append(frame)


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of the driver."""

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
    """Group of calls that differ only in the addresses of some arguments.

    Attributes:
        arguments: numbers of the arguments whose addresses differ.
        places: addresses of all arguments in one of the calls. Those of the other arguments are the same in all calls.
    """

    arguments: tuple[int, ...]
    places: tuple[int, ...]


def all_addresses(addresses: Sequence[int], like: Moving | None) -> Sequence[int]:
    """Returns the addresses of all arguments.

    Args:
        addresses: addresses of `like.arguments`, or of all arguments.
        like: group of similar calls, or None.
    """
    if like is None:
        return addresses
    places = list(like.places)
    for argument, address in zip(like.arguments, addresses):
        places[argument] = address
    return places


class LaunchGraph:
    """CUDA graph of the launches of a program for one set of shapes.

    Args:
        launches: the launches.
        addresses: addresses of all arguments.
        scratch: the arena, a tensor of bytes or None. The graph owns it.
        stream: stream of torch on which the arena was allocated.

    Raises:
        ExecutionError: if the driver refuses the graph, or if PyTorch computes a step.
    """

    def __init__(self, launches: PreparedLaunches, addresses: Sequence[int], scratch: Any, stream: Any) -> None:
        self._scratch, self._lock, self._streams = scratch, Lock(), {stream.cuda_stream}
        self._addresses, self._frame = [*addresses], Frame(launches)
        self._like: Moving | None = None
        self._frame.fill(addresses, scratch)
        self._graph, self._run = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuGraphCreate", ctypes.byref(self._graph), 0)
        self._nodes: list[tuple[ctypes.c_void_p, KernelNode]] = []
        for step in self._frame.steps:
            if isinstance(step, EagerStep):
                raise ExecutionError(f"{step.function} is left to PyTorch", operator="cuda")
            before = (ctypes.c_void_p * 1)(self._nodes[-1][0].value) if self._nodes else None
            (function, *sizes), parameters = step
            node, parameters_of_node = ctypes.c_void_p(), KernelNode(function, *sizes, parameters)
            how = (self._graph, before, ctypes.c_size_t(len(self._nodes[:1])), ctypes.byref(parameters_of_node))
            call("cuGraphAddKernelNode_v2", ctypes.byref(node), *how)
            self._nodes.append((node, parameters_of_node))
        call("cuGraphInstantiateWithFlags", ctypes.byref(self._run), self._graph, ctypes.c_ulonglong(0))

    def launch(self, addresses: Sequence[int], stream: Any, like: Moving | None = None) -> bool:
        """Launches the graph. Returns false if it was closed.

        Args:
            addresses: addresses of all arguments, or of `like.arguments`.
            stream: stream of torch.
            like: group of similar calls, or None.

        Raises:
            ExecutionError: if the driver refuses the launch.
        """
        with self._lock:
            if not self._run:
                return False
            old, like_before = self._addresses, self._like
            if like is not None and like is like_before:
                places = zip(like.arguments, addresses)
            else:
                places = enumerate(all_addresses(addresses, like))
            try:
                self._move([(n, address) for n, address in places if old[n] != address])
            except BaseException:
                # Some nodes may have new addresses and others old ones, so the next launch must set all of them.
                self._like, self._addresses = None, [-1] * len(old)
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
        """Sets the parameters of the nodes that use `moved` arguments, given as pairs of argument and new address."""
        nodes: set[int] = set()
        for argument, address in moved:
            nodes |= self._frame.move(argument, address)
            self._addresses[argument] = address
        for number in sorted(nodes):
            node, parameters = self._nodes[number]
            call("cuGraphExecKernelNodeSetParams_v2", self._run, node, ctypes.byref(parameters))

    def close(self) -> None:
        """Destroys the graph. Running launches end first."""
        with self._lock:
            run, self._run = self._run, ctypes.c_void_p()
            graph, self._graph = self._graph, ctypes.c_void_p()
            if run:
                library().cuGraphExecDestroy(run)
            if graph:
                library().cuGraphDestroy(graph)
            self._scratch = None

    def __del__(self) -> None:
        # `close` fails if `__init__` has failed, or if modules are already gone at the end of the process.
        with suppress(Exception):
            self.close()


def call(name: str, *arguments: Any) -> None:
    """Calls the driver. Raises ExecutionError for a status that is not success."""
    if status := getattr(library(), name)(*arguments):
        raise ExecutionError(f"{name} fails: error {status}{advice(status)}", operator="cuda")
