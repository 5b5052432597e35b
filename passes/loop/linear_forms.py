"""Affine forms as operations of the loop level: loads at them, and integers computed from them."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from xdsl.dialects import arith
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from ...dialects import loop, payload
from ...dialects.shapes.affine import DIM, Form, number_of, renumbered, write
from ...dialects.shapes.domain import DomainAttr
from ...dialects.shapes.extents import Extent


def is_linear(form: Form) -> bool:
    """Whether a form is a sum of multiples of indices."""
    return all(atom[0] == DIM for atom, _ in form.terms)


def computed(form: Form, indices: Sequence[SSAValue], type: Attribute) -> list[Operation]:
    """Operations of which the last gives a linear form of `indices` as an integer."""
    ops: list[Operation] = []
    for atom, factor in form.terms:
        before = ops[-1:]
        ops.append(payload.CastOp(indices[number_of(atom)], type))
        if factor != 1:
            weight = payload.ConstantOp(factor, type)
            ops += [weight, arith.MuliOp(ops[-1].results[0], weight.result)]
        ops += [arith.AddiOp(total.results[0], ops[-1].results[0]) for total in before]
    if form.constant or not ops:
        before, number = ops[-1:], payload.ConstantOp(form.constant, type)
        ops.append(number)
        ops += [arith.AddiOp(total.results[0], number.result) for total in before]
    return ops


def load_at(
    op: loop.LoadOp,
    indices: Sequence[SSAValue],
    coordinates: Sequence[Form],
    constraints: Sequence[tuple[Form, int, Extent]],
) -> loop.LoadOp:
    """The load of `op` at `coordinates`, where the constraints hold: forms of `indices`, of which it gets only those
    that it needs, and of its symbols."""
    forms = [*coordinates, *(form for form, *_ in constraints)]
    used = sorted({number_of(a) for a in chain(*(f.atoms() for f in forms)) if a[0] == DIM})
    count = len(op.symbols)
    names = {d: i for i, d in enumerate(used)}, {i: i for i in range(count)}
    exprs = tuple(write(renumbered(f, *names)) for f in forms)
    split, domain = len(coordinates), None
    if constraints:
        domain = DomainAttr.get(AffineMap(len(used), count, exprs[split:]), [(lo, hi) for _, lo, hi in constraints])
    map, fill = AffineMap(len(used), count, exprs[:split]), op.fill if constraints else None
    load = loop.LoadOp(op.source, map, [indices[d] for d in used], op.symbols, domain, fill)
    load.attributes.update(op.attributes)
    return load
