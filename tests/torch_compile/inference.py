"""Uses without gradients: modes, dynamic sizes, views, aliases, arguments and results of all kinds."""

from __future__ import annotations

import dataclasses
import threading
from collections import namedtuple
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .checking import Compile, quick, use

Tensor = torch.Tensor


def r(*shape: int) -> Tensor:
    return torch.randn(*shape)


def shared(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@torch.no_grad()
def seq(compile: Compile, function: Any, *calls: tuple[Any, ...], **options: Any) -> list[Any]:
    """Returns the results of several calls of one compiled function."""
    f = compile(function, **options)
    return [f(*call) for call in calls]


# Modes and options

for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
    quick("modes", **{f"mode {mode}": lambda c, m=mode: seq(c, lambda x: x * 2, (r(3),), mode=m)})
quick(
    "modes",
    option_executor=lambda c: seq(c, torch.sin, (r(3),), options={"executor": "reference"}),
    option_target=lambda c: seq(c, torch.sin, (r(3),), options={"target": "sm_80"}),
    option_f32_matmul_precision=lambda c: seq(c, lambda x: x @ x, (r(4, 4),), options={"f32_matmul_precision": "ieee"}),
    fullgraph=lambda c: seq(c, lambda x: x.exp() + 1, (r(3),), fullgraph=True),
    decorator=lambda c: seq(lambda f, **o: c(**o)(f), lambda x: x - 1, (r(3),)),
    dynamic_false=lambda c: seq(c, lambda x: x + 1, (r(3),), (r(5),), dynamic=False),
    disabled=lambda c: seq(c, lambda x: x + 1, (r(3),), disable=True),
)
quick(
    "modes",
    "left to PyTorch",
    fallback_eager=lambda c: seq(c, lambda x: torch.linalg.inv(x) + 1, (r(3, 3),), options={"fallback": "eager"}),
)
quick(
    "modes",
    "expected one of the options",
    True,
    unknown_option=lambda c: seq(c, torch.sin, (r(3),), options={"triton.cudagraphs": True}),
)
quick("modes", "mode: expected one of", True, unknown_mode=lambda c: seq(c, torch.sin, (r(3),), mode="fastest"))
quick("modes", "linalg", True, unsupported=lambda c: seq(c, lambda x: torch.linalg.inv(x), (r(3, 3),)))

# Sizes and numbers that change

a, b = (2, 3), (4, 5)
quick(
    "sizes",
    pointwise=lambda c: seq(c, lambda x: x.tanh() * 2, (r(3),), (r(5),), (r(7),)),
    sum_of_rows=lambda c: seq(c, lambda x: x.sum(-1), (r(3, 4),), (r(5, 4),), (r(7, 4),)),
    product=lambda c: seq(c, lambda x, w: x @ w, (r(3, 4), r(4, 2)), (r(5, 4), r(4, 2))),
    softmax=lambda c: seq(c, lambda x: x.softmax(-1), (r(2, 3),), (r(2, 6),)),
    dynamic_from_the_start=lambda c: seq(c, lambda x: x + x.shape[0], (r(3),), (r(5),), dynamic=True),
    dynamic_layer_norm=lambda c: seq(c, nn.LayerNorm(4), (r(2, 4),), (r(3, 4),), dynamic=True),
    dynamic_batch_norm=lambda c: seq(c, nn.BatchNorm1d(4).eval(), (r(2, 4, 3),), (r(3, 4, 5),), dynamic=True),
    dynamic_float=lambda c: seq(c, lambda x, s: x * s, (r(3), 0.5), (r(4), 0.7), dynamic=True),
    float_argument=lambda c: seq(c, lambda x, s: x * s, (r(3), 0.5), (r(3), 0.7), (r(3), -0.0), (r(3), 0.0)),
    int_argument=lambda c: seq(c, lambda x, s: x * s, (r(3), 3), (r(3), 5), (r(3), 6)),
    bool_argument=lambda c: seq(c, lambda x, up: x + 1 if up else x - 1, (r(3), True), (r(3), False)),
    string_argument=lambda c: seq(c, lambda x, how: F.pad(x, (1, 1), mode=how), (r(1, 3), "constant")),
    other_type=lambda c: seq(c, lambda x: x + 1, (r(3),), (r(3).double(),), (torch.arange(3),)),
    other_rank=lambda c: seq(c, lambda x: x.sum(), (r(3),), (r(3, 2),)),
    size_one_and_zero=lambda c: seq(c, lambda x: x * 2, (r(3),), (r(1),), (r(0),)),
    size_as_result=lambda c: seq(c, lambda x: (x + 1, x.shape[0] * 2), (r(3),), (r(5),)),
)
STATIC = "there is a program for each shape"
quick(
    "sizes",
    STATIC,
    dynamic_group_norm=lambda c: seq(c, nn.GroupNorm(2, 4), (r(2, 4, 3),), (r(3, 4, 5),), dynamic=True),
    conv=lambda c: seq(c, nn.Conv2d(1, 1, 2), (r(1, 1, 4, 4),), (r(1, 1, 5, 4),), (r(1, 1, 6, 7),)),
    topk=lambda c: seq(c, lambda x: x.topk(2)[0], (r(4),), (r(6),)),
    pairs=lambda c: seq(c, lambda x: x.reshape(-1, 2) * 2, (r(4),), (r(6),)),
    flip=lambda c: seq(c, lambda x: x.flip(0), (r(*a),), (r(*b),)),
    roll=lambda c: seq(c, lambda x: x.roll(1, 0), (r(*a),), (r(*b),)),
    sort=lambda c: seq(c, lambda x: x.sort(-1)[0], (r(*a),), (r(*b),)),
    interpolate=lambda c: seq(c, lambda x: F.interpolate(x, scale_factor=2), (r(1, 1, 2, 3),), (r(1, 1, 3, 5),)),
    cdist=lambda c: seq(c, lambda x: torch.cdist(x, x), (r(*a),), (r(*b),)),
    chunk=lambda c: seq(c, lambda x: [y + 1 for y in x.chunk(2)], (r(4),), (r(6),)),
)
quick(
    "sizes",
    pad=lambda c: seq(c, lambda x: F.pad(x, (1, 2)), (r(3),), (r(5),)),
    shifted=lambda c: seq(c, lambda x: (x[1:] - x[:-1]).sum(), (r(4),), (r(6),)),
)


@use("sizes")
def causal_attention(compile: Compile) -> Any:
    def attend(x: Tensor) -> Tensor:
        t = x.shape[1]
        mask = torch.tril(torch.ones(t, t)) == 0
        return (x @ x.transpose(1, 2)).masked_fill(mask, float("-inf")).softmax(-1) @ x

    return seq(compile, attend, (r(1, 3, 2),), (r(2, 4, 2),), (r(2, 5, 2),))


@use("sizes", "are left to PyTorch")
def many_sizes(compile: Compile) -> Any:
    return seq(compile, lambda x: x.flip(0), *[(r(n),) for n in range(2, 13)])


# Views, strides, aliases


@torch.no_grad()
def aliased(compile: Compile, function: Any, x: Tensor) -> Any:
    """Returns a result, whether it shares memory with the argument, and both after a change of the result in place."""
    y = compile(function)(x)
    same = shared(x, y)
    if not any(n > 1 and s == 0 for n, s in zip(y.shape, y.stride(), strict=True)):
        y.add_(1)
    return y, x, same, y is x


VIEWS = {
    "view": lambda x: x.view(-1),
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[1:, ::2],
    "select": lambda x: x[1],
    "expand": lambda x: x.expand(2, *x.shape),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "reshape": lambda x: x.reshape(6),
    "reshape that copies": lambda x: x.t().reshape(6),
    "contiguous": lambda x: x.contiguous(),
    "to the same type": lambda x: x.float(),
    "detach": lambda x: x.detach(),
    "itself": lambda x: x,
    "permute of unflatten": lambda x: x.unflatten(1, (3, 1)).permute(2, 1, 0),
    "diagonal": lambda x: x.diagonal(),
    "einsum": lambda x: torch.einsum("ij->ji", x),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)),
    "copy": lambda x: x.clone(),
}
for name, view in VIEWS.items():
    quick("views", **{f"view: {name}": lambda c, f=view: aliased(c, f, r(2, 3))})
STRIDES = {
    "transposed result": lambda x: (x * 2).t(),
    "permuted result": lambda x: (x[None] + 1).permute(2, 0, 1),
    "expanded result": lambda x: x.sum(0, keepdim=True).expand(4, 3),
    "part of a result": lambda x: (x * 2)[:, :2],
    "chunks of a result": lambda x: (x * 2).chunk(3, 1),
    "result and a view of it": lambda x: ((y := x * 2), y.view(-1), y.t()),
    "same result twice": lambda x: ((y := x * 2), y),
    "transposed argument": lambda x: x.t().contiguous().t() + 1,
}
for name, view in STRIDES.items():
    quick("strides", **{name: lambda c, f=view: seq(c, f, (r(2, 3),))})


@use("strides")
def channels_last(compile: Compile) -> Any:
    conv = nn.Conv2d(2, 3, 1).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return seq(compile, conv, (r(2, 2, 3, 3).to(memory_format=torch.channels_last),))


@use("strides")
def attention_with_heads(compile: Compile) -> Any:
    def attend(x: Tensor) -> Tensor:
        q = x.view(1, 4, 2, 3).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q)

    return seq(compile, attend, (r(1, 4, 6),))


@use("strides")
@torch.no_grad()
def results_that_share_memory(compile: Compile) -> Any:
    y, v = compile(lambda x: ((y := x * 2), y.view(-1)))(r(2, 3))
    y.add_(1)
    return y, v, shared(y, v)


@use("changes")
@torch.no_grad()
def argument_changed(compile: Compile) -> Any:
    def change(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return x

    f, x = compile(change), r(3)
    return (z := f(x, r(3))), x, z is x


@use("changes")
@torch.no_grad()
def part_of_an_argument_changed(compile: Compile) -> Any:
    def change(x: Tensor) -> Tensor:
        x[0].mul_(2)
        return x.view(-1)

    f, x = compile(change), r(2, 3)
    y = f(x)
    y.add_(1)
    return x, y, shared(x, y)


@use("changes")
@torch.no_grad()
def copied_and_returned(compile: Compile) -> Any:
    def keep(state: Tensor, x: Tensor) -> Tensor:
        y = x * 2
        state.copy_(y)
        return y

    f, state = compile(keep), torch.zeros(3)
    first, second = f(state, r(3)), f(state, r(3))
    return first, second, state, shared(first, state)


@use("changes")
@torch.no_grad()
def one_tensor_as_two_arguments(compile: Compile) -> Any:
    x = r(3)
    return compile(lambda a, b: a.add_(b) * 2)(x, x), x


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


@use("changes")
@torch.no_grad()
def buffer_changed(compile: Compile) -> Any:
    module = Counter()
    f = compile(module)
    return [f(torch.ones(2)) for _ in range(3)], module.count


@use("changes")
@torch.no_grad()
def batch_norm_in_training_mode(compile: Compile) -> Any:
    module = nn.BatchNorm1d(3)
    return compile(module)(r(4, 3)), module.running_mean, module.running_var, module.num_batches_tracked


# Arguments and results

Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Output:
    hidden: Tensor
    extra: Any = None


quick(
    "arguments",
    keywords=lambda c: seq(c, lambda x, *, by=2.0: x * by, (r(3),)),
    dictionary=lambda c: seq(c, lambda d: {"y": d["x"] + 1, "n": None, "t": (1, 2.5)}, ({"x": r(3)},)),
    list_of_tensors=lambda c: seq(c, lambda xs: [x * 2 for x in xs], ([r(2), r(3)],)),
    named_tuple=lambda c: [tuple(p) for p in seq(c, lambda x: Pair(x + 1, 3), (r(3),))],
    data_class=lambda c: [(o.hidden, o.extra) for o in seq(c, lambda x: Output(x + 1), (r(3),))],
    none=lambda c: seq(c, lambda x, m: x if m is None else x * m, (r(3), None), (r(3), r(3))),
    no_tensor_at_all=lambda c: seq(c, lambda: torch.arange(4) * 2, ()),
    constant_result=lambda c: seq(c, lambda x: torch.tensor([1.0, 2.0]) + 0 * x, (r(2),)),
    scalar_tensor=lambda c: seq(c, lambda x, s: x * s, (r(3), torch.tensor(2.0))),
    not_contiguous=lambda c: seq(c, lambda x: x + 1, (r(3, 2).t(),)),
    empty=lambda c: seq(c, lambda x: x.sum(-1), (r(3, 0),)),
    boolean_mask=lambda c: seq(c, lambda x: x.masked_fill(x > 0, 0.0), (r(3),)),
    bf16=lambda c: seq(c, lambda x: x.bfloat16() * 2, (r(3),)),
)


@use("arguments")
@torch.no_grad()
def out_argument(compile: Compile) -> Any:
    out = torch.empty(3)
    y = compile(lambda x, out: torch.add(x, 1, out=out))(r(3), out)
    return y, out


# Graph breaks, hooks, modules


@use("graphs")
def graph_break(compile: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    return seq(compile, f, (r(3),))


@use("graphs")
def branch_on_data(compile: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    return seq(compile, f, (torch.ones(3),), (-torch.ones(3),))


@use("graphs")
def item(compile: Compile) -> Any:
    return seq(compile, lambda x: x * x.max().item(), (r(3),))


@use("graphs")
@torch.no_grad()
def module_compiled_in_place(compile: Compile) -> Any:
    module, x = nn.Linear(2, 3), r(4, 2)
    if compile(module) is not module:
        module.compile(backend="deplodock")
    return module(x)


@use("graphs")
def list_of_modules_that_are_compiled(compile: Compile) -> Any:
    layers = nn.Sequential(*(compile(nn.Linear(3, 3)) for _ in range(2)))
    return [y.detach() for y in seq(lambda f: f, layers, (r(2, 3),))]


@use("graphs")
@torch.no_grad()
def forward_hook(compile: Compile) -> Any:
    module, seen = nn.Linear(2, 2), []
    module.register_forward_hook(lambda m, args, y: seen.append(1) or y * 2)
    return compile(module)(r(3, 2)), len(seen)


@use("graphs")
@torch.no_grad()
def inner_no_grad(compile: Compile) -> Any:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return x * 2

    return compile(nn.Sequential(Inner(), nn.ReLU()))(r(3))


@use("graphs")
@torch.inference_mode()
def inference_mode(compile: Compile) -> Any:
    y = compile(nn.Linear(2, 2))(r(3, 2))
    return y.clone(), y.is_inference()


@use("graphs")
@torch.no_grad()
def encoder_layer(compile: Compile) -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    return compile(layer)(r(2, 3, 8))


@use("graphs")
@torch.no_grad()
def encoder_layer_with_padding(compile: Compile) -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, norm_first=True, activation="gelu").eval()
    padding = torch.tensor([[False, False, True], [False, False, False]])
    return compile(layer)(r(2, 3, 8), src_key_padding_mask=padding)


@use("graphs")
@torch.no_grad()
def weights_changed_between_calls(compile: Compile) -> Any:
    module, x = nn.Linear(2, 2), r(3, 2)
    f = compile(module)
    first = f(x)
    module.weight.mul_(2)
    return first, f(x)


@use("graphs")
@torch.no_grad()
def dropout_in_eval(compile: Compile) -> Any:
    return compile(nn.Sequential(nn.Dropout(0.5), nn.ReLU()).eval())(r(4))


@use("random")
@torch.no_grad()
def dropout_drops_and_scales(compile: Compile) -> Any:
    f = compile(lambda x: F.dropout(x, 0.5))
    y, z = f(torch.ones(1000)), f(torch.ones(1000))
    return sorted(y.unique().tolist()), 300 < int((y == 0).sum()) < 700, bool((y != z).any())


@use("random")
@torch.no_grad()
def seeds_repeat(compile: Compile) -> Any:
    f = compile(lambda x: torch.rand_like(x))
    torch.manual_seed(3)
    y = f(r(4))
    torch.manual_seed(3)
    return bool((f(r(4)) == y).all())


# autocast


@use("autocast")
@torch.no_grad()
def autocast_outside(compile: Compile) -> Any:
    f = compile(lambda x: x @ x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return f(torch.eye(4))


@use("autocast")
def autocast_inside(compile: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        return y.float() + x

    return seq(compile, f, (torch.eye(4),))


@use("autocast")
def autocast_switched_off_inside(compile: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return x @ x

    with torch.autocast("cpu", dtype=torch.bfloat16):
        return seq(compile, f, (torch.eye(4),))


# Threads


def in_threads(count: int, work: Any) -> list[Any]:
    found: list[Any] = [None] * count

    def one(i: int) -> None:
        with torch.no_grad():
            found[i] = work(i)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return found


@use("threads")
def one_program_in_eight_threads(compile: Compile) -> Any:
    f = compile(lambda x: x.relu() + 1)
    return in_threads(8, lambda i: f(torch.arange(3.0) - i))


@use("threads")
def several_programs_in_four_threads(compile: Compile) -> Any:
    functions = [lambda x, k=k: x * k for k in range(4)]
    return in_threads(4, lambda i: compile(functions[i])(torch.arange(3.0)))
