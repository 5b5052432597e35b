"""How the lanes of a warp turn one layout of a tile into another by shuffles.

Both layouts are linear over GF(2), so what a target register and lane (r, l) needs is a source register and lane that
are linear in them:

    source lane = A r + B l        source register = C r + D l

A shuffle moves one register of every lane, and the same one within a lane. So the exchange goes in rounds, one for each
target register, in which lane l receives its register `round + Q l`: by then the source lane is A round + (B + A Q) l.
Q is chosen such that the source register is a function of the round and of the *source* lane, N of it, which lanes can
apply before they send; where B + A Q can be the identity, a lane gets what it keeps without a shuffle. Such a Q exists
wherever no element is held twice (columns of B are taken one after the other, and one that depends on those before it
can be moved by the span of A, which has as many independent vectors as there are such columns).

The idea, to give registers a number that depends on the lane before and after the shuffles, is the one of "Linear
Layouts: Robust Code Generation of Efficient Tensor Computation Using F2" (Zhou et al., 2025), section 5.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .linear import LANE_BITS, Linear, Span, combine


@dataclass(frozen=True)
class Exchange:
    """One conversion within warps: each lane renumbers its registers, sends them, and renumbers what it got.

    All numbers are exclusive ors of what their set bits add.

    before     for every bit of the lane's number, what it adds to that of a register before
    registers  for every bit of the round's number, what it adds to that of the register that is sent, as numbered now
    lanes      for every bit of the receiving lane's number, what it adds to that of the lane that it gets from
    flips      for every bit of the round's number, what it adds to that
    after      for every bit of the lane's number, what it adds to that of the round, which gives that of the register
    """

    before: tuple[int, ...]
    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    flips: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def stays(self) -> bool:
        """Whether a lane gets from itself where a round adds nothing to that."""
        return self.lanes == tuple(1 << b for b in range(LANE_BITS))

    @property
    def shuffles(self) -> int:
        """Registers that are moved between lanes."""
        rounds = 1 << len(self.flips)
        return rounds - (rounds >> Span(self.flips).rank) if self.stays else rounds

    @property
    def paired(self) -> bool:
        """Whether registers 2 n and 2 n + 1 stay together all the way, so that two of 16 bits can go as one."""
        own, others = self.registers[:1] == (1,) and self.flips[0] == 0, self.registers[1:]
        return own and not any(n & 1 for n in (*others, *self.before, *self.after))

    def choices(self, held: int) -> int:
        """Registers, of `held` before, that are chosen by the number of the lane."""
        return (len(set(self.before) - {0}) * held) + (len(set(self.after) - {0}) << len(self.flips))


def find_exchange(source: Linear, target: Linear) -> Exchange | None:
    """How `target` is made of `source` within warps; None if some lane needs an element of another warp, or would
    need two registers of one lane in a round."""
    if source.shape != target.shape or source.warp != target.warp:
        return None
    places = _Places(source)
    n, m = len(source.reg), len(target.reg)
    images = [places.of(p) for p in target.packed[: m + LANE_BITS]]
    if any(i is None for i in images):
        return None
    known = [i for i in images if i is not None]
    registers = [places.without_lanes(i) for i in known[:m]]
    columns = _Columns(n, registers, places.kernel)
    for bit in range(LANE_BITS):
        if not columns.take(known[m + bit], bit):
            return None
    low, lanes = (1 << n) - 1, tuple(c >> n for c in columns.images)
    before = _linear(lanes, [c & low for c in columns.images])
    flips = tuple(r >> n for r in registers)
    sent = tuple(r & low ^ combine(before, r >> n) for r in registers)
    return Exchange(before, sent, lanes, flips, tuple(columns.after))


class _Places:
    """Where elements of a layout are: numbers of a register and, above its bits, a lane."""

    def __init__(self, source: Linear) -> None:
        self._registers = len(source.reg)
        self._span = Span()
        self.kernel: list[int] = []
        """Differences of places that hold the same element."""
        for number, p in enumerate(source.packed[: self._registers + LANE_BITS]):
            found = self._span.solve(p)
            if found is not None:
                self.kernel.append(found | 1 << number)
            self._span.add(p)

    def of(self, element: int) -> int | None:
        """A place of an element, by its packed coordinate."""
        return self._span.solve(element)

    def without_lanes(self, place: int) -> int:
        """A place of the same element in lane 0, if there is one, else `place`."""
        found = Span(k >> self._registers for k in self.kernel).solve(place >> self._registers)
        return place if found is None else place ^ combine(self.kernel, found)


class _Columns:
    """The places that the bits of a receiving lane's number add, with what they add to the register that it becomes."""

    def __init__(self, bits: int, registers: Sequence[int], kernel: Sequence[int]) -> None:
        self._bits = bits
        self._moves = [*registers, *kernel]
        self._targets = len(registers)
        self._lanes = Span(v >> bits for v in self._moves)
        self.images: list[int] = []
        self.after: list[int] = []

    def take(self, image: int, bit: int) -> bool:
        """Find the place that lane bit `bit` adds, near `image`; False if there is none."""
        own = self._lanes.solve(image >> self._bits ^ 1 << bit)
        for move in ([] if own is None else [own]) + [0, *(1 << i for i in range(len(self._moves)))]:
            moved = image ^ combine(self._moves, move)
            if self._consistent(moved):
                self.images.append(moved)
                self.after.append(move & (1 << self._targets) - 1)
                return True
        return False

    def _consistent(self, image: int) -> bool:
        """Whether the register of `image` is a function of its lane, beside those taken before."""
        found = Span(c >> self._bits for c in self.images).solve(image >> self._bits)
        return found is None or combine(self.images, found) == image


def _linear(vectors: Sequence[int], values: Sequence[int]) -> tuple[int, ...]:
    """What the bits of a lane's number add in a linear map that has `values` at `vectors`; zero where those do not
    say."""
    span, known = Span(vectors), list(values)
    for bit in range(LANE_BITS):
        if span.solve(1 << bit) is None:
            span.add(1 << bit)
            known.append(0)
    return tuple(combine(known, span.solve(1 << bit) or 0) for bit in range(LANE_BITS))
