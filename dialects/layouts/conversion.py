"""Conversion of one register layout of a tile to another within a warp, by shuffles.

`find_exchange` computes the shuffles, `Exchange` is the result. Both layouts are linear over GF(2). So if lane `l`
needs an element in its target register `r`, the lane and the register that hold it in the source layout are linear in
`r` and `l`. With `+` for XOR:

    source lane = A r + B l        source register = C r + D l

**Rounds**: in a shuffle each lane sends one register and receives one value. So there is one round for each target
register. If every lane received its register `t` in round `t`, one lane might have to send two registers. Therefore
lane `l` receives its register `t + Q l` in round `t`, for some matrix `Q`. By the formulas above the lane that sends it
is `s = A t + (B + A Q) l`, and its register is `C t + (D + C Q) l`. If `B + A Q` can be inverted, `l` follows from `s`
and `t`. Then the register to send is a linear function of the round and of the *sending* lane, `M t + N s`. So a lane
permutes its registers by `N s` before the rounds, and the received ones by `Q l` after them.

**Free rounds**: if possible, `Q` makes `B + A Q` the identity. Then every lane receives from itself in the rounds with
`A t` = 0, which need no shuffle.

**Existence**: if the source holds no element twice, such a `Q` exists. Proof: the register to send is a function of the
sending lane if the matrix `B + A Q` (receiving lane -> sending lane) can be inverted. `find_exchange` chooses its
columns from left to right. A column of `B` that depends on the columns before it is changed by adding a vector of the
span of `A`. This always succeeds, because the columns of `A` and `B` together span all lanes.

Zhou et al. (2025, cited in `layouts/__init__.py`) also convert linear layouts by warp shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .linear import LANE_BITS, Linear, Span, combine


@dataclass(frozen=True)
class Exchange:
    """Conversion within warps: each lane permutes its registers, sends them in rounds, and permutes the received ones.

    Each field is a linear map over GF(2): entry `i` is the number that bit `i` of the argument contributes by XOR. In
    round `t`, lane `l` receives from lane `lanes(l) ^ flips(t)`, and that lane `s` sends its register `registers(t) ^
    before(s)`. The received value is register `t ^ after(l)` of the target.

        before     sending lane -> register, permutation before the shuffles
        registers  round -> register that is sent, in the numbering after `before`
        lanes      receiving lane -> sending lane
        flips      round -> sending lane
        after      receiving lane -> target register, permutation after the shuffles
    """

    before: tuple[int, ...]
    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    flips: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def stays(self) -> bool:
        """Returns true if a lane receives from itself in every round whose `flips` is 0."""
        return self.lanes == tuple(1 << b for b in range(LANE_BITS))

    @property
    def shuffles(self) -> int:
        """Returns the number of shuffles: the rounds, except those in which every lane receives from itself."""
        rounds = 1 << len(self.flips)
        return rounds - (rounds >> Span(self.flips).rank) if self.stays else rounds

    @property
    def paired(self) -> bool:
        """Returns true if registers 2n and 2n + 1 stay together in all steps, so that two 16-bit values fit one
        shuffle."""
        first_bit_stays, other_registers = self.registers[:1] == (1,) and self.flips[0] == 0, self.registers[1:]
        return first_bit_stays and not any(n & 1 for n in (*other_registers, *self.before, *self.after))

    def choices(self, held: int) -> int:
        """Returns the number of select instructions that permute registers by the lane number.

        `held`: number of source registers of a lane.
        """
        return (len(set(self.before) - {0}) * held) + (len(set(self.after) - {0}) << len(self.flips))


def find_exchange(source: Linear, target: Linear) -> Exchange | None:
    """Returns the shuffles that convert `source` to `target` within each warp, or None if there are none.

    None means that the warp bases differ, that a lane needs an element of another warp, or that a lane would have to
    send two registers in one round.
    """
    if source.shape != target.shape or source.warp != target.warp:
        return None
    n, m = len(source.reg), len(target.reg)
    # A position is a register number with the lane number in the bits above. `source_span.solve(element)` returns the
    # position of an element in the source. `kernel` has the differences of positions that hold the same element.
    source_span = Span()
    kernel: list[int] = []
    for number, element in enumerate(source.packed[: n + LANE_BITS]):
        if (combination := source_span.solve(element)) is not None:
            kernel.append(combination | 1 << number)
        source_span.add(element)
    target_positions = source_span.solve_all(target.packed[: m + LANE_BITS])
    if target_positions is None:
        return None
    registers = [_without_lanes(position, kernel, n) for position in target_positions[:m]]
    images, after = list[int](), list[int]()
    for bit, position in enumerate(target_positions[m:]):
        column = _column(position, bit, n, images, [*registers, *kernel])
        if column is None:
            return None
        images.append(column[0])
        after.append(column[1] & (1 << m) - 1)
    low, lanes = (1 << n) - 1, tuple(c >> n for c in images)
    before = _linear(lanes, [c & low for c in images])
    flips = tuple(r >> n for r in registers)
    sent = tuple(r & low ^ combine(before, r >> n) for r in registers)
    return Exchange(before, sent, lanes, flips, tuple(after))


def _without_lanes(position: int, kernel: Sequence[int], bits: int) -> int:
    """Returns the position of the same element in lane 0 if there is one, else `position`.

    A position is a source register number with the lane number in the bits above. `kernel`: differences of positions
    that hold the same element. `bits`: register bits.
    """
    combination = Span(k >> bits for k in kernel).solve(position >> bits)
    return position if combination is None else position ^ combine(kernel, combination)


def _column(image: int, bit: int, bits: int, chosen: Sequence[int], moves: Sequence[int]) -> tuple[int, int] | None:
    """Chooses one column of `(B + A Q, D + C Q)`: the source position for one bit of the receiving lane's number.

    A position is a source register number with the lane number in the bits above. A choice is legal if the lanes of the
    chosen positions determine their registers, so that each lane sends one register. The first legal choice is taken:

    - a position in the receiving lane itself, which needs no shuffle,
    - else `image`, the position without a permutation of the target registers,
    - else `image` after one of the moves.

    Args:
        image: position of the element that target register 0 needs in the lane with only this bit set.
        bit: number of the bit.
        bits: register bits of a position.
        chosen: positions that were chosen for lower bits.
        moves: changes of a position that are allowed: source positions of target registers (the lane then receives
            another of its registers), and differences between positions that hold the same element.

    Returns:
        The position, and the moves in it: bit i is set for `moves[i]`. None if no choice is legal.
    """
    to_same_lane = Span(v >> bits for v in moves).solve(image >> bits ^ 1 << bit)
    lanes = Span(c >> bits for c in chosen)
    for move in ([] if to_same_lane is None else [to_same_lane]) + [0, *(1 << i for i in range(len(moves)))]:
        moved = image ^ combine(moves, move)
        combination = lanes.solve(moved >> bits)
        if combination is None or combine(chosen, combination) == moved:
            return moved, move
    return None


def _linear(vectors: Sequence[int], values: Sequence[int]) -> tuple[int, ...]:
    """Returns the linear map, as one number for each lane bit, that has `values` at `vectors`; zero where they do not
    determine it."""
    span, images = Span(vectors), list(values)
    for bit in range(LANE_BITS):
        if span.solve(1 << bit) is None:
            span.add(1 << bit)
            images.append(0)
    return tuple(combine(images, span.solve(1 << bit) or 0) for bit in range(LANE_BITS))
