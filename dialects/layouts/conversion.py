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
    n, m = len(source.reg), len(target.reg)
    places = Span()  # numbers of a register and, above its bits, a lane; solved for the element there
    kernel: list[int] = []  # differences of places that hold the same element
    for number, element in enumerate(source.packed[: n + LANE_BITS]):
        if (found := places.solve(element)) is not None:
            kernel.append(found | 1 << number)
        places.add(element)
    known = places.solve_all(target.packed[: m + LANE_BITS])
    if known is None:
        return None
    registers = [_without_lanes(place, kernel, n) for place in known[:m]]
    images, after = list[int](), list[int]()
    for bit, place in enumerate(known[m:]):
        column = _column(place, bit, n, images, [*registers, *kernel])
        if column is None:
            return None
        images.append(column[0])
        after.append(column[1] & (1 << m) - 1)
    low, lanes = (1 << n) - 1, tuple(c >> n for c in images)
    before = _linear(lanes, [c & low for c in images])
    flips = tuple(r >> n for r in registers)
    sent = tuple(r & low ^ combine(before, r >> n) for r in registers)
    return Exchange(before, sent, lanes, flips, tuple(after))


def _without_lanes(place: int, kernel: Sequence[int], bits: int) -> int:
    """A place of the same element in lane 0, if there is one, else `place`."""
    found = Span(k >> bits for k in kernel).solve(place >> bits)
    return place if found is None else place ^ combine(kernel, found)


def _column(image: int, bit: int, bits: int, taken: Sequence[int], moves: Sequence[int]) -> tuple[int, int] | None:
    """The place, near `image`, that lane bit `bit` of a receiving lane's number adds, with what it adds to the register
    that it becomes: the register of a place has to be a function of its lane, beside those `taken` before."""
    own = Span(v >> bits for v in moves).solve(image >> bits ^ 1 << bit)
    lanes = Span(c >> bits for c in taken)
    for move in ([] if own is None else [own]) + [0, *(1 << i for i in range(len(moves)))]:
        moved = image ^ combine(moves, move)
        found = lanes.solve(moved >> bits)
        if found is None or combine(taken, found) == moved:
            return moved, move
    return None


def _linear(vectors: Sequence[int], values: Sequence[int]) -> tuple[int, ...]:
    """What the bits of a lane's number add in a linear map that has `values` at `vectors`; zero where those do not
    say."""
    span, known = Span(vectors), list(values)
    for bit in range(LANE_BITS):
        if span.solve(1 << bit) is None:
            span.add(1 << bit)
            known.append(0)
    return tuple(combine(known, span.solve(1 << bit) or 0) for bit in range(LANE_BITS))
