"""Programs that the compiler refuses, with words that the error message must contain.

A comment `# here` marks the line that the message must name. Without a mark it is the line of the function.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim
from torch.nn.attention.flex_attention import flex_attention


@dataclass(frozen=True)
class Refused:
    """A program that is refused, with its arguments.

    Attributes:
        function: the program.
        args: example arguments.
        calls: source text of the calls that the message must name.
        remedy: part of the advice in the message.
        how: options of `deplodock.compile`.
    """

    function: Any
    args: tuple[Any, ...]
    calls: tuple[str, ...]
    remedy: str
    how: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def places(self) -> list[str]:
        """Locations of the marked lines, as `refused_programs.py:LINE`."""
        function = self.function.forward if isinstance(self.function, nn.Module) else self.function
        lines, first = inspect.getsourcelines(function)
        marked = [first + i for i, line in enumerate(lines) if "# here" in line]
        return [f"refused_programs.py:{n}" for n in marked or [function.__code__.co_firstlineno]]


PROGRAMS: dict[str, Refused] = {}

X, V, N = torch.linspace(-1, 1, 16).view(4, 4), torch.linspace(-1, 1, 8), torch.tensor(3)
EAGER, NUMBER, OUTSIDE = 'fallback="eager"', "as an argument", "outside of the compiled program"


def refused(*calls: str, remedy: str, args: tuple[Any, ...] = (X,), **how: Any) -> Callable[[Any], Any]:
    """Returns a decorator that adds a program to `PROGRAMS`.

    Args:
        *calls: source text of the calls that the message must name.
        remedy: part of the advice in the message.
        args: example arguments.
        **how: options of `deplodock.compile`.
    """

    def enter(function: Any) -> Any:
        PROGRAMS[function.__name__] = Refused(function, args, calls, remedy, how)
        return function

    return enter


@refused("torch.linalg.inv(x)", remedy=EAGER)
def inverse(x):
    y = x * 2
    return torch.linalg.inv(x) + y  # here


@refused("torch.linalg.svd(x)", remedy=EAGER)
def singular_values(x):
    return torch.linalg.svd(x).S + 1  # here


@refused("torch.linalg.eigvals(x)", remedy=EAGER)
def eigenvalues(x):
    return torch.linalg.eigvals(x)  # here


@refused("torch.linalg.cholesky(x @ x.T)", remedy=EAGER)
def cholesky(x):
    return torch.linalg.cholesky(x @ x.T).sum()  # here


@refused("torch.linalg.solve(x, x)", remedy=EAGER)
def solve(x):
    return torch.linalg.solve(x, x)  # here


@refused("x.slogdet()", remedy=EAGER)
def method(x):
    return x.slogdet()  # here


@refused("torch.linalg.matrix_rank(x)", remedy=EAGER)
def composed(x):
    return torch.linalg.matrix_rank(x)  # here


@refused("torch.linalg.lu_factor(...)", remedy=EAGER)
def several_lines(x):
    return torch.linalg.lu_factor(  # here
        x + torch.ones_like(x) + torch.zeros_like(x) + torch.full_like(x, 3.0),
        pivot=True,
    )


@refused("torch.linalg.qr(x)", remedy=EAGER)
def one_of_many_on_a_line(x):
    return torch.relu(x) @ torch.sin(torch.linalg.qr(x)[0]) + torch.exp(x)  # here


@refused("torch.poisson(x.abs())", remedy=EAGER)
def poisson(x):
    return torch.poisson(x.abs())  # here


@refused("torch.distributions.Gamma(x, x).rsample()", remedy=EAGER, args=(X.abs() + 1,))
def gamma(x):
    return torch.distributions.Gamma(x, x).rsample()  # here


class Solver(nn.Module):
    """A module named like the unsupported operator that it calls: the user's line has only this name."""

    def __init__(self):
        super().__init__()
        self.function = torch.linalg.pinv

    def forward(self, x):
        return self.function(x) + 1  # here


PROGRAMS["renamed"] = Refused(Solver(), (X,), ("self.function(x) (torch.linalg.pinv)",), EAGER)


@refused(
    *("torch.linalg.inv(x)", "torch.linalg.svd(a)", "torch.poisson(b.abs())", "torch.linalg.eigh(a)", "a.logdet()"),
    remedy="leaves them to PyTorch",
)
def five(x):
    a = torch.linalg.inv(x)  # here
    b = torch.linalg.svd(a).S  # here
    c = torch.poisson(b.abs())  # here
    d = torch.linalg.eigh(a).eigenvalues  # here
    return a, b, c, d, a.logdet()  # here


@refused("x[:n.item()]", remedy="return a copy", args=(X, N))
def slice_of_item(x, n):
    return x[: n.item()]  # here


@refused("int(n)", remedy="n.item()", args=(X, N))
def size_as_an_integer(x, n):
    return x.new_zeros(int(n))  # here


@refused("int(n)", remedy="n.item()", args=(X, N))
def count_of_a_loop(x, n):
    for _ in range(int(n)):  # here
        x = x + 1
    return x


@refused("torch.split(x, s.tolist())", remedy="return a copy", args=(X, torch.tensor([1, 3])))
def sizes_of_a_list(x, s):
    return torch.split(x, s.tolist())  # here


@refused("float(x[0])", remedy="keep it a tensor", args=(V,))
def number(x):
    return x * float(x[0])  # here


@refused("torch.tensor([x[0], 1.0])", remedy="torch.stack", args=(V,))
def tensor_of_numbers(x):
    return torch.tensor([x[0], 1.0]) * 2  # here


@refused("torch.linalg.lstsq(x, x)", remedy="torch.compile")
def least_squares(x):
    return torch.linalg.lstsq(x, x).solution  # here


@refused("x.sum() > 0", remedy="torch.cond", args=(V,))
def branch(x):
    if x.sum() > 0:  # here
        return x + 1
    return x - 1


@refused("x.sum().item() > 0", remedy="torch.cond", args=(V,))
def branch_of_an_item(x):
    return x if x.sum().item() > 0 else -x  # here


@refused("x.sum() < 100", remedy="torch.where", args=(V,))
def loop(x):
    while x.sum() < 100:  # here
        x = x * 2
    return x


@refused("rows.shape[0] > 2", remedy="torch.where", args=(V,))
def branch_of_a_count(x):
    rows = x.nonzero()[:, 0]
    return x[rows[:2]] if rows.shape[0] > 2 else x  # here


@refused("torch.allclose(x, x + 1)", remedy="torch.where", args=(V,))
def closeness(x):
    return x if torch.allclose(x, x + 1) else -x  # here


@refused("sorted(x)", remedy="torch.where", args=(V,))
def python_sort(x):
    return sorted(x)[0]  # here


@refused("r.sum() > 0", remedy="torch.where")
def branch_in_vmap(x):
    return torch.vmap(lambda r: r if r.sum() > 0 else -r)(x)  # here


@refused("np.sin(x)", remedy="function of torch of the same name", args=(V,))
def numpy_function(x):
    return np.sin(x)  # here


@refused("x.numpy()", remedy="call NumPy outside", args=(V,))
def numpy_array(x):
    return torch.from_numpy(x.numpy() * 2)  # here


@refused("f'{x.sum().item():.3f}'", remedy="print it outside", args=(V,))
def printing(x):
    print(f"{x.sum().item():.3f}")  # here
    return x


@refused("torch.save(x, '/dev/null')", remedy=OUTSIDE, args=(V,))
def saving(x):
    torch.save(x, "/dev/null")  # here
    return x


@refused("open('/no/such/file')", "FileNotFoundError", remedy="correct the program", args=(V,))
def reading(x):
    with open("/no/such/file") as file:  # here
        return x * len(file.read())


@refused("generator_of_tensors", "generator", remedy="return tensors")
def generator_of_tensors(x):
    return (x * i for i in range(3))


class Pair:
    """A container that `torch.utils._pytree` does not know, so its tensors are no arguments."""

    def __init__(self, x):
        self.x = x


@refused("object_returned", "Pair", remedy="register the class")
def object_returned(x):
    return Pair(x)


@refused("object_as_argument", "Pair", remedy="pass its tensors", args=(X, Pair(X)))
def object_as_argument(x, pair):
    return x + pair.x


@refused("RecursionError", remedy="write a loop")
def recursive(x):
    return recursive(x + 1)  # here


@refused("torch.randn(...)", "generator", remedy=OUTSIDE)
def own_generator(x):
    return x + torch.randn(4, 4, generator=torch.Generator().manual_seed(0))  # here


TABLE = torch.zeros(8)


@refused("changes_a_global_tensor", remedy="register_buffer", args=(V,))
def changes_a_global_tensor(x):
    TABLE.add_(x)
    return x


@refused("changes_behind_autograd", remedy="torch.no_grad", args=(V.clone(),))
def changes_behind_autograd(x):
    x.data.add_(1)
    return x


@refused("x + v", "cpu and meta", remedy="move all to one device", args=(X, torch.empty(4, 4, device="meta")))
def two_devices(x, v):
    return x + v  # here


@refused("x.to('cuda:0')", "device cuda", remedy="move the arguments")
def moved_inside(x):
    return x.to("cuda:0")  # here


@refused("float8_e4m3fnuz", remedy="x.to(", args=(torch.ones(4, dtype=torch.float8_e4m3fnuz),))
def type_of_an_argument(x):
    return x.reshape(-1)


@refused("x.to(torch.float8_e8m0fnu)", remedy="convert the tensor")
def type_inside(x):
    return x.to(torch.float8_e8m0fnu)  # here


@refused("x.to_sparse()", remedy="to_dense")
def sparse(x):
    return x.to_sparse() @ x  # here


@refused("torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)", remedy="dequantize")
def quantized(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()  # here


@refused("torch.nested.nested_tensor(", remedy="pad_sequence")
def nested(x):
    return torch.nested.nested_tensor([x[:2], x], layout=torch.jagged) * 2  # here


@refused("x", "sparse_coo", remedy="to_dense", args=(X.to_sparse(),))
def sparse_argument(x):
    return x * 2


@refused("flex_attention(q, q, q, score_mod=shifted)", remedy="plain operators", args=(torch.randn(1, 2, 16, 8),))
def flexible_attention(q):
    def shifted(s, b, h, i, j):
        return s + (i - j)

    return flex_attention(q, q, q, score_mod=shifted)  # here


@refused("torch.cond", "float32[2] and float32[8]", remedy="torch.where", args=(V,))
def branches_of_two_shapes(x):
    return torch.cond(x.sum() > 0, lambda a: a[:2], lambda a: a, (x,))


@refused("while_loop(", "number of steps", remedy="a fixed number of steps", args=(V,))
def loop_operator(x):
    return torch.ops.higher_order.while_loop(lambda a: a.sum() < 100, lambda a: (a * 2,), (x,), ())  # here


BATCH = Dim("batch", min=2, max=64)


@refused("fixed_by_the_program", "batch is 4", remedy="Dim", dynamic_shapes=({0: BATCH},))
def fixed_by_the_program(x):
    return x.view(2, 8)


@refused("even_sizes", "batch", remedy="Dim", dynamic_shapes=({0: BATCH},))
def even_sizes(x):
    return x.view(-1, 2, 4)


@refused("number_that_varies", "a number", remedy="pass it as a tensor", args=(X, 3), dynamic_shapes=({}, Dim("n")))
def number_that_varies(x, n):
    return x * n


@refused("x @ v", "size mismatch", remedy="correct the program", args=(X, V))
def shapes(x, v):
    return x @ v  # here


@refused("x.sum(5)", "out of range", remedy="correct the program")
def dimension(x):
    return x.sum(5)  # here


@refused("unknown", "NameError", remedy="correct the program")
def name(x):
    return x + unknown  # here  # noqa: F821


@refused("x.no_such_method", "'Tensor' object has no attribute", remedy="correct the program")
def attribute(x):
    return x.no_such_method()  # here


@refused("raises", "ValueError: four rows", remedy="correct the program")
def raises(x):
    raise ValueError("four rows")  # here


@refused("torch.relu(x, 3)", "TypeError", remedy="correct the program")
def too_many_arguments(x):
    return torch.relu(x, 3)  # here


@refused("missing", "missing a required argument: 'y'", remedy="for each parameter")
def missing(x, y):
    return x + y


@refused("x[[0, 9]]", "outside [-4, 4)", remedy="")
def index(x):
    return x[[0, 9]]  # here


def expression(code: str) -> Any:
    """Returns a function without a source file, as if typed in a notebook."""
    name = "<ipython-input-7-abc>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(code, name, "exec"), scope)
    return scope["f"]
