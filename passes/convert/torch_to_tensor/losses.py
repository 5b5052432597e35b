"""Losses of which PyTorch has an operator of its own."""

from __future__ import annotations

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ....dialects.payload import element_type
from ....dialects.shapes.extents import extents_of
from ....dialects.tensor.builder import Builder
from .reductions import mean_over
from .registry import decomposes
from .reshape import reshape_to


@decomposes("multilabel_margin_loss")
def multilabel_margin_loss(b: Builder, self: SSAValue, target: SSAValue, reduction: int) -> SSAValue:
    """The sum over targets t and other classes i of max(0, 1 - (x[t] - x[i])), by the number of classes. The targets of
    a row end at its first negative number. `reduction` is 0 for none, 1 for the mean over rows, 2 for their sum."""
    x, t = b.working(self), b.cast(target, i64)
    if not extents_of(x.type):
        x, t = reshape_to(b, x, [1]), reshape_to(b, t, [1])
    shape = extents_of(x.type)
    last = len(shape) - 1
    classes, leading = shape[last], list(range(last))
    place = b.iota(last, shape)
    end = b.reduce("min", b.select(b.cmp("lt", t, 0), place, b.like(place, classes)), [last])
    listed = b.cmp("lt", place, b.keep(end, [last], shape))

    space = [*shape, classes]  # ..., the place in the list of targets, the class
    by_place, by_class = [*leading, last], [*leading, last + 1]
    of_class = b.place(x, by_class, space)
    hit = b.both(b.cmp("eq", b.place(t, by_place, space), b.iota(last + 1, space)), b.place(listed, by_place, space))
    of_target = b.reduce("add", b.select(hit, of_class, b.like(of_class, 0)), [last + 1])
    is_target = b.reduce("or", hit, [last])
    margin = b.plus(b.sub(of_class, b.place(of_target, by_place, space)), 1)
    counts = b.both(b.place(listed, by_place, space), b.negated(b.place(is_target, by_class, space)))
    counts = b.both(counts, b.cmp("gt", margin, 0))
    total = b.reduce("add", b.select(counts, margin, b.like(margin, 0)), [last, last + 1])
    loss = b.div(total, b.constant(classes, extents_of(total.type), element_type(x.type)))
    if reduction == 0:
        return reshape_to(b, loss, b.result_shape)
    return mean_over(b, loss, leading) if reduction == 1 else b.reduce("add", loss, leading)
