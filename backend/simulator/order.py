"""What orders accesses within a block in which warps go different ways: clocks of warps and of asynchronous agents.

The unit is a warp. It knows, of every other warp and of every agent, up to which of their steps it has synchronised
with them; barriers pass this on. Agents are what works beside the threads: the copies that signal one mbarrier, the
products of one warpgroup, the stores of one thread. Stores of a warp reach agents only through its own fence, so what
was fenced is known and passed on separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..interpreter.domains import Array
from .memory import MANY, Races, Shadow

MOST_AGENTS = 256
"""Agents of a block or cluster: mbarriers that copies signal, warpgroups, threads that store boxes."""


@dataclass
class Knowledge:
    """Up to which step the work of warps, their fenced stores, and the work of agents is known."""

    warps: Array
    fenced: Array
    agents: Array

    @staticmethod
    def nothing(warps: int) -> Knowledge:
        """Of nobody."""
        return Knowledge(np.zeros(warps, np.int32), np.zeros(warps, np.int32), np.zeros(MOST_AGENTS, np.int32))

    def learn(self, other: Knowledge) -> None:
        """Add what `other` knows."""
        for mine, theirs in ((self.warps, other.warps), (self.fenced, other.fenced), (self.agents, other.agents)):
            np.maximum(mine, theirs, out=mine)


class Agent:
    """Work beside the threads, numbered from 1; `ended` is the last number up to which everything is done."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.started = 0
        self.ended = 0
        self._done: set[int] = set()

    def start(self) -> int:
        """The number of a new piece of work."""
        self.started += 1
        return self.started

    def finish(self, work: int) -> None:
        """A piece of work is done."""
        self._done.add(work)
        while self.ended + 1 in self._done:
            self.ended += 1


class Order:
    """The clocks of one block, or of all blocks of a cluster, one after the other."""

    def __init__(self, warps: int) -> None:
        self.warps = warps
        self.clock = np.ones(warps, np.int32)
        self.known = [Knowledge.nothing(warps) for _ in range(warps)]
        self.meetings = np.zeros(warps, np.int32)
        """How many barriers each warp has been through: what orders lanes of one warp."""
        self.agents: dict[tuple[str, int, int], Agent] = {}

    def agent(self, kind: str, key: int, index: int = 0) -> Agent:
        """The agent of that kind and key, made when it is first asked for."""
        return self.agents.setdefault((kind, key, index), Agent(len(self.agents)))

    def give(self, warp: int) -> Knowledge:
        """What a warp knows, which then starts a new step."""
        mine = self.known[warp]
        given = Knowledge(mine.warps.copy(), mine.fenced.copy(), mine.agents.copy())
        given.warps[warp] = self.clock[warp]
        self.clock[warp] += 1
        return given

    def meet(self, warps: Sequence[int]) -> None:
        """All of `warps` learn what any of them knows."""
        together = Knowledge.nothing(self.warps)
        for w in warps:
            together.learn(self.give(w))
        for w in warps:
            self.known[w].learn(together)
            self.meetings[w] += 1

    def fence(self, warp: int) -> None:
        """Agents that hear of it may see what the warp has stored."""
        self.known[warp].fenced[warp] = self.clock[warp]
        self.clock[warp] += 1

    def table(self) -> Array:
        """[warp, other warp]: up to which step the one knows the other; itself always."""
        table = np.stack([k.warps for k in self.known])
        np.fill_diagonal(table, np.iinfo(np.int32).max)
        return table


@dataclass
class Meeting:
    """Per cell that an agent touches, whether that breaks a rule."""

    unfinished: Array
    unordered: Array
    unfenced: Array
    uninitialised: Array


class OrderedShadow(Shadow):
    """The history of every cell, for threads that are ordered by `order` and for agents."""

    def __init__(self, blocks: int, cells: int, order: Order) -> None:
        super().__init__(blocks, cells)
        self.order = order
        self.write_clock = np.zeros(cells, np.int32)
        self.read_clock = np.zeros((cells, order.warps), np.int32)
        self.agent_writer = np.full(cells, -1, np.int32)
        self.agent_write = np.zeros(cells, np.int32)
        self.agent_reads: dict[int, Array] = {}

    def read(self, at: tuple[Array, Array], thread: Array, epoch: Array, owner: int) -> Races:
        """As in Shadow; the epoch does not matter."""
        cells, warp, order = at[1], thread // 32, self.order
        nothing = (self.write_epoch[at] < 0) & (self.agent_writer[cells] < 0)
        foreign = ~nothing & (self.owner[at] != owner)
        race = self._after_write(at, thread)
        self.read_clock[cells, warp] = order.clock[warp]
        others = (self.read_epoch[at] == order.meetings[warp]) & (self.reader[at] != thread)
        self.reader[at] = np.where(others, MANY, thread)
        self.read_epoch[at] = order.meetings[warp]
        return Races(nothing, foreign, race, self._unfinished_write(cells, warp))

    def write(self, at: tuple[Array, Array], thread: Array, epoch: Array, owner: int, unchanged: Array) -> Array:
        """As in Shadow; the epoch does not matter."""
        cells, warp, order = at[1], thread // 32, self.order
        lanes = (self.read_epoch[at] == order.meetings[warp]) & (self.reader[at] != thread)
        lanes &= self.reader[at] // 32 == warp
        race = (self._after_write(at, thread) | self._after_read(cells, warp) | lanes) & ~unchanged
        race |= self._unfinished_write(cells, warp) | self._unfinished_reads(cells, warp)
        self.writer[at] = thread
        self.write_epoch[at] = order.meetings[warp]
        self.write_clock[cells] = order.clock[warp]
        self.owner[at] = owner
        return race

    def use(self, cells: Array, warp: int, agent: Agent, work: int, owner: int, write: bool) -> Meeting:
        """An agent starts to touch `cells`, on behalf of `warp`, which has to know of what came before."""
        who = np.full(cells.shape, warp)
        stored = self.write_epoch[0, cells] >= 0
        writers = np.maximum(self.writer[0, cells], 0) // 32
        unfenced = stored & (self.order.known[warp].fenced[writers] < self.write_clock[cells])
        unfinished, unordered = self._unfinished_write(cells, who), np.zeros(cells.shape, np.bool_)
        nothing = ~stored & (self.agent_writer[cells] < 0)
        if write:
            unfinished |= self._unfinished_reads(cells, who)
            unordered = self._after_read(cells, who)
            self.agent_writer[cells] = agent.number
            self.agent_write[cells] = work
            self.owner[0, cells] = owner
        else:
            reads = self.agent_reads.setdefault(agent.number, np.zeros(self.cells, np.int32))
            reads[cells] = work
        return Meeting(unfinished, unordered, unfenced, nothing & (not write))

    def _after_write(self, at: tuple[Array, Array], thread: Array) -> Array:
        warp, writer = thread // 32, self.writer[at]
        known = self.order.table()[warp, np.maximum(writer, 0) // 32]
        other = (known < self.write_clock[at[1]]) & (writer // 32 != warp)
        lane = (writer // 32 == warp) & (writer != thread) & (self.write_epoch[at] == self.order.meetings[warp])
        return (self.write_epoch[at] >= 0) & (other | lane)

    def _after_read(self, cells: Array, warp: Array) -> Array:
        return np.asarray((self.read_clock[cells] > self.order.table()[warp]).any(axis=1))

    def _unfinished_write(self, cells: Array, warp: Array) -> Array:
        agents = np.stack([k.agents for k in self.order.known])
        writer = self.agent_writer[cells]
        return (writer >= 0) & (agents[warp, np.maximum(writer, 0)] < self.agent_write[cells])

    def _unfinished_reads(self, cells: Array, warp: Array) -> Array:
        agents = np.stack([k.agents for k in self.order.known])
        found = np.zeros(cells.shape, np.bool_)
        for number, reads in self.agent_reads.items():
            found |= agents[warp, number] < reads[cells]
        return found
