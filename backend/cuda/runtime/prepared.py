"""Launches with all that stays the same from call to call: a call fills in where its memory lies.

The driver takes a kernel's parameters as an array of their addresses, and copies them when it launches. They all lie in
one array of words for each call that is under way: pointers first, then sizes, which never change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...host.launch_plan import EagerStep, LaunchPlan, TensorMap

KEPT_MAPS = 4096
"""So many encoded tensor maps are kept for each call that is under way at once."""

Encode = Callable[[TensorMap, int], Any]
Head = tuple[int, ...]
"""Function, grid, block and bytes of shared memory, as `cuLaunchKernel` takes them."""


class Frame:
    """The parameters of one call. `steps` are what is done: launches with the address of their parameters."""

    def __init__(self, launches: PreparedLaunches) -> None:
        self.words = np.concatenate([np.zeros(len(launches.memory), np.int64), launches.sizes])
        self.pointers = self.words[: len(launches.memory)]
        self.parameters = self.words.ctypes.data + 8 * launches.order
        first = self.parameters.ctypes.data
        self.steps = [s if isinstance(s, EagerStep) else (s[0], first + 8 * s[1]) for s in launches.steps]
        self.maps: dict[tuple[int, int], tuple[Any, int]] = {}

    def fill(self, launches: PreparedLaunches, addresses: Sequence[int], encode: Encode) -> None:
        """Put in where the arguments of the program and its scratch memory lie."""
        np.add(np.array(addresses, np.int64)[launches.memory], launches.begins, out=self.pointers)
        if len(self.maps) > KEPT_MAPS:
            self.maps.clear()
        for described in launches.maps:
            self._describe(*described, encode)

    def move(self, launches: PreparedLaunches, memory: int, address: int, encode: Encode) -> set[int]:
        """Put in that a memory lies elsewhere than before; gives the launches, by their numbers, that use it."""
        uses = launches.uses[memory]
        if len(self.maps) > KEPT_MAPS:
            self.maps = {key: kept for key, kept in self.maps.items() if self.parameters[key[0]] == kept[1]}
        for pointer, begin in uses.pointers:
            self.pointers[pointer] = address + begin
        for described in uses.maps:
            self._describe(*described, encode)
        return uses.steps

    def _describe(self, parameter: int, pointer: int, wanted: TensorMap, encode: Encode) -> None:
        """Let a parameter be the map of where its pointer points to now."""
        address = int(self.pointers[pointer])
        found = self.maps.get((parameter, address))
        if found is None:
            record = encode(wanted, address)
            found = self.maps[parameter, address] = record, record.ctypes.data
        self.parameters[parameter] = found[1]


@dataclass
class Uses:
    """What uses a memory: pointers, with how many bytes behind its begin they point, maps, and steps by number."""

    pointers: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    maps: list[tuple[int, int, TensorMap]] = field(default_factory=list[tuple[int, int, TensorMap]])
    steps: set[int] = field(default_factory=set[int])


class PreparedLaunches:
    """The steps of a plan whose sizes are known. `functions` are the addresses of the loaded kernels.

    `memory` and `begins` say of every pointer in which memory it is, an argument's or (after the last) the arena, and
    how many bytes behind its begin; `order` has the word of each parameter; `maps` are parameters that are tensor maps,
    with the pointer that they describe; `uses` has by memory what changes with its place."""

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
            head = (functions[step.kernel], *_three(step.blocks), *_three(step.threads), step.shared)
            self.steps.append((head, len(order)))
            first = len(pointers)
            for number, begin in zip(step.buffers, step.begins(), strict=True):
                order.append((len(pointers), False))
                memory, offset = places[number]
                self.uses[memory].pointers.append((len(pointers), offset + begin))
                self.uses[memory].steps.add(len(self.steps) - 1)
                pointers.append((memory, offset + begin))
            for wanted in step.maps:
                self.maps.append((len(order), first + wanted.argument, wanted))
                self.uses[pointers[first + wanted.argument][0]].maps.append(self.maps[-1])
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

    def take(self) -> Frame:
        """Parameters for a call; several may be under way."""
        try:
            return self._free.pop()
        except IndexError:
            return Frame(self)

    def give_back(self, frame: Frame) -> None:
        """The call has launched everything."""
        self._free.append(frame)


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
