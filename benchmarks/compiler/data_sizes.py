"""Programs whose sizes depend on data, and a command that compares them with PyTorch.

    python -m benchmarks.compiler.data_sizes  # all programs on all executors (20 minutes)
    python -m benchmarks.compiler.data_sizes --executor reference --only experts -v
    python -m benchmarks.compiler.data_sizes --journal sizes.json --update  # also writes docs/data_sizes.md

Each program runs with several arguments, for which its sizes are 0, 1, some and all. The exit status is 1 if a result
differs from PyTorch's.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
import torch._dynamo.utils
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim
from torch.utils import _pytree as pytree

import deplodock
from deplodock.errors import DeplodockError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data_sizes.md"
EXECUTORS = ("cpu", "emulator", "reference")
WAYS = ("compile", "torch.compile", "breaks")
"""`deplodock.compile`; `torch.compile` that captures sizes from data; `torch.compile` by default, with graph breaks."""

Arguments = tuple[Tensor, ...]


@dataclass(frozen=True)
class Program:
    """Program with arguments for which its sizes are none, one, some, or all.

    Attributes:
        function: the program.
        cases: arguments of calls. The first ones are the example.
        raises: numbers of the cases that PyTorch refuses.
        shapes: sizes of arguments that vary, as for `deplodock.compile`.
    """

    function: Callable[..., Any]
    cases: Sequence[Arguments]
    raises: frozenset[int] = frozenset()
    shapes: Any = None


PROGRAMS: dict[str, Program] = {}
"""Programs by name."""


def program(
    cases: Callable[[], Sequence[Arguments]], raises: Sequence[int] = (), shapes: Any = None
) -> Callable[..., Any]:
    """Returns a decorator that adds a function to `PROGRAMS`.

    Args:
        cases: returns the arguments of the calls.
        raises: numbers of the cases that PyTorch refuses.
        shapes: sizes of arguments that vary.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        torch.manual_seed(0)
        PROGRAMS[function.__name__] = Program(function, cases(), frozenset(raises), shapes)
        return function

    return add


N, D = 12, 8


def _signs(*others: Callable[[], Tensor]) -> list[Arguments]:
    """Returns vectors with some, no, one and all positive elements, each with further arguments."""
    one = torch.full((N,), -1.0)
    one[5] = 2.0
    return [(x, *(f() for f in others)) for x in (torch.randn(N), -torch.rand(N) - 0.1, one, torch.rand(N) + 0.1)]


def _masks(*others: Callable[[], Tensor]) -> list[Arguments]:
    """Returns masks with some, no, one and all true elements, each after further arguments."""
    masks = (torch.rand(N) > 0.5, torch.zeros(N, dtype=torch.bool), torch.arange(N) == 7, torch.ones(N) > 0)
    return [(*(f() for f in others), mask) for mask in masks]


def _numbers(most: int, *others: Callable[[], Tensor]) -> list[Arguments]:
    return [(*(f() for f in others), torch.tensor(n)) for n in (5, 0, 1, most)]


def rows() -> Tensor:
    return torch.randn(N, D)


def weights() -> Tensor:
    return torch.randn(4, D)


@program(_signs)
def sum_of_positive(x: Tensor) -> Tensor:
    return x[x > 0].sum()


@program(_signs)
def mean_of_positive(x: Tensor) -> Tensor:
    return x[x > 0].mean()


@program(_signs, raises=[1])
def largest_positive(x: Tensor) -> Tensor:
    return x[x > 0].max()


@program(lambda: [(x.reshape(3, 4),) for (x,) in _signs()])
def positions(x: Tensor) -> tuple[Tensor, Tensor]:
    i, j = torch.where(x > 0)
    return torch.nonzero(x > 0), x[i, j] * 2 + i


@program(lambda: _masks(rows, weights))
def linear_of_selected(x: Tensor, w: Tensor, mask: Tensor) -> Tensor:
    return F.relu(F.linear(x[mask], w))


@program(lambda: _masks(rows))
def softmax_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(x[mask], dim=-1)


@program(lambda: _masks(rows))
def normalized_over_selected(x: Tensor, mask: Tensor) -> Tensor:
    h = x[mask]
    return (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt()


@program(lambda: _masks(rows, weights))
def selected_attention(x: Tensor, w: Tensor, mask: Tensor) -> Tensor:
    h = x[mask]
    q, k = h @ w.t(), h @ w.t() * 0.5
    return torch.softmax(q @ k.t() / 2.0, dim=-1) @ h


LENGTHS = [torch.tensor(v) for v in ([2, 3, 1], [0, 0, 0], [0, 1, 0], [4, 4, 4])]


@program(lambda: [(torch.randn(3, D), v) for v in LENGTHS])
def repeated_rows(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.repeat_interleave(x, lengths, dim=0)


@program(lambda: [(torch.randn(3, 4, D), v) for v in LENGTHS])
def padded_to_packed(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    valid = torch.arange(x.shape[1]) < lengths[:, None]
    packed = x[valid]
    ends = lengths.cumsum(0)
    return packed, ends - lengths


@program(lambda: [(torch.randn(3, 4, D), v) for v in LENGTHS])
def padded_packed_padded(x: Tensor, lengths: Tensor) -> Tensor:
    valid = torch.arange(x.shape[1]) < lengths[:, None]
    packed = torch.tanh(x[valid])
    sequence = torch.repeat_interleave(torch.arange(x.shape[0]), lengths)
    packed = packed - torch.zeros(x.shape[0], x.shape[2]).index_add(0, sequence, packed)[sequence]
    out = torch.zeros_like(x)
    out[valid] = packed
    return out


@program(lambda: [(torch.randn(12, D), v) for v in LENGTHS])
def attention_of_packed_sequences(x: Tensor, lengths: Tensor) -> Tensor:
    """Attends inside of each image, with the tokens of several images packed, as in NaViT."""
    image = torch.repeat_interleave(torch.arange(lengths.shape[0]), lengths)
    tokens = x[: image.shape[0]]
    scores = tokens @ tokens.t()
    scores = scores.masked_fill(image[:, None] != image[None, :], float("-inf"))
    return torch.softmax(scores, -1) @ tokens


def _edges() -> list[Arguments]:
    edges = torch.randint(0, N, (2, 20))
    scores = (torch.rand(20), torch.zeros(20), (torch.arange(20) == 3).float(), torch.ones(20))
    return [(rows(), edges, s) for s in scores]


@program(_edges)
def messages_along_edges(x: Tensor, edges: Tensor, score: Tensor) -> Tensor:
    edges = edges[:, score > 0.5]
    source, target = edges
    out = torch.zeros_like(x).index_add(0, target, x[source])
    degree = torch.zeros(x.shape[0]).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
    return out / degree.clamp(min=1)[:, None]


VALUES = [torch.tensor(v) for v in ([3, 1, 3, 2, 1, 7], [5] * 6, [6, 5, 4, 3, 2, 1])]


@program(lambda: [(v,) for v in (*VALUES, torch.zeros(6, dtype=torch.int64))])
def unique_with_counts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.unique(x, return_inverse=True, return_counts=True)


@program(lambda: [(v,) for v in VALUES])
def runs(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.unique_consecutive(x, return_counts=True)


@program(lambda: [(torch.randint(0, 2, (6, 2)),), (torch.zeros(6, 2).long(),), (torch.arange(12).reshape(6, 2),)])
def unique_rows(x: Tensor) -> Tensor:
    return torch.unique(x, dim=0)


@program(lambda: [(torch.randn(6, 4), v) for v in VALUES])
def mean_of_groups(x: Tensor, label: Tensor) -> Tensor:
    _, group, counts = torch.unique(label, return_inverse=True, return_counts=True)
    return x.new_zeros(counts.shape[0], x.shape[1]).index_add(0, group, x) / counts[:, None]


@program(lambda: [(v,) for v in (*VALUES, torch.zeros(6, dtype=torch.int64))])
def histogram(x: Tensor) -> Tensor:
    return torch.bincount(x)


@program(lambda: _masks(rows, rows))
def masked_updates(x: Tensor, h: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    y, z = x.clone(), x.clone()
    y[mask] *= 2.0
    z[mask] = torch.tanh(h[mask]) + 1
    return y, z


@program(_signs)
def ordered_updates(x: Tensor) -> Tensor:
    y = x.clone()
    y[x > 0] = x[x > 0].cumsum(0)
    return y


def _scores() -> list[Arguments]:
    return [(torch.randn(2, 9) * s,) for s in (1.0, 20.0, 0.01)]


@program(_scores)
def top_p(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the probabilities that the nucleus of each row contains, and the number of candidates."""
    p, order = torch.softmax(logits, -1).sort(descending=True)
    inside = p.cumsum(-1) - p < 0.8
    return p[inside], order[inside]


@program(lambda: _numbers(9))
def first_integers(n: Tensor) -> Tensor:
    return torch.arange(n.item()) * 2


@program(lambda: _numbers(N, rows), raises=[3])
def first_rows(x: Tensor, n: Tensor) -> Tensor:
    return x[: n.item()].sum(0) + x[n.item() :].amax()


@program(lambda: [(*a, torch.tensor(-3)) for a in _numbers(N, rows)])
def rows_from_the_end(x: Tensor, n: Tensor, last: Tensor) -> Tensor:
    return x[n.item() : last.item()] * 2


@program(lambda: [(torch.randn(6, 2), torch.tensor(v)) for v in ([1, 2, 3], [0, 0, 6], [6, 0, 0], [2, 2, 2])])
def split_by_sizes(x: Tensor, sizes: Tensor) -> list[Tensor]:
    return [part.sum(0) * 2 for part in torch.split(x, sizes.tolist())]


@program(lambda: [(torch.randn(N, 4), s) for s in (torch.rand(N), torch.zeros(N), torch.ones(N))])
def detections(boxes: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Filters boxes by their scores, sorts them, and drops each that overlaps a better one."""
    chosen = torch.where(score > 0.3)[0]
    order = score[chosen].argsort(descending=True, stable=True)
    corner, size = boxes[chosen][order].split(2, -1)
    end = corner + size.abs()
    inner = (torch.minimum(end[:, None], end) - torch.maximum(corner[:, None], corner)).clamp(min=0).prod(-1)
    worse = (inner > 0.5).triu(1).any(0)
    return chosen[order][~worse], corner[~worse]


@program(lambda: _masks(rows))
def slices_of_selected(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Slices by numbers, which Python clamps to the selected rows."""
    y = x[mask]
    return y[:2], y[1:], y[-3:], y[:-1], y[::2]


@program(lambda: [(rows(), torch.randn(3, D, D), torch.randint(0, k, (N,))) for k in (3, 1, 2)])
def experts(x: Tensor, w: Tensor, choice: Tensor) -> Tensor:
    """Applies the weights of each expert to the rows that chose it, in a loop over experts.

    Args:
        x: rows.
        w: weights of the experts.
        choice: number of the expert of each row.
    """
    out = torch.zeros_like(x)
    for e in range(w.shape[0]):
        chosen = torch.where(choice == e)[0]
        out.index_add_(0, chosen, torch.relu(x[chosen] @ w[e]))
    return out


@program(_signs)
def positive_then_negative(x: Tensor) -> Tensor:
    return torch.cat([x[x > 0], x[x < 0].abs()])


@program(_signs)
def size_of_a_size(x: Tensor) -> Tensor:
    large = x[x > 0]
    larger = large[large > large.sum() / large.shape[0]]
    return larger * larger.shape[0]


@program(lambda: _masks(rows))
def selected_elements(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].reshape(-1) + 1


@program(lambda: _masks(rows))
def transposed_selection(x: Tensor, mask: Tensor) -> Tensor:
    h = x[mask]
    return torch.stack([h, h * 2]).permute(2, 1, 0).flatten(1)


@program(lambda: _masks(rows, weights))
def nearest_center(x: Tensor, centers: Tensor, mask: Tensor) -> Tensor:
    distance = (x[mask][:, None] - centers).square().sum(-1)
    return distance.argmin(-1)


def _as_many_rows() -> list[Arguments]:
    return [(x, m, torch.randn(int(m.sum()) + more, D)) for more in (0, 1) for x, m in _masks(rows)]


@program(_as_many_rows, raises=range(4, 8), shapes=(None, None, {0: Dim("m", min=0, max=N)}))
def size_of_an_argument(x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    h = x[mask]
    torch._check(h.shape[0] == y.shape[0])
    return h + y


@program(lambda: _masks(rows))
def scattered_and_sorted(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    h = x[mask]
    return h[:, 0].sort().values, h.cumsum(0)


@program(lambda: _masks(rows))
def one_hot_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    return F.one_hot(x[mask].argmax(-1), D).float() @ x.t()


@program(lambda: [(torch.randint(0, 5, (N,)), torch.randn(5, D), m) for (m,) in _masks()])
def embedding_of_selected(token: Tensor, table: Tensor, mask: Tensor) -> Tensor:
    return F.layer_norm(F.embedding(token[mask], table), (D,))


@program(_signs)
def number_as_a_factor(x: Tensor) -> Tensor:
    n = (x > 0).sum().item()
    return x * n + torch.full((n,), 2.0).sum()


@dataclass(frozen=True)
class Verdict:
    """Outcome of one program.

    Attributes:
        program: name of the program.
        way: way to compile it, one of `WAYS`.
        executor: one of `EXECUTORS`.
        outcome: `right`, or a line with the difference or the refusal.
        breaks: graph breaks of `torch.compile`.
    """

    program: str
    way: str
    executor: str
    outcome: str
    breaks: int = 0


def compiled(program: Program, way: str, executor: str) -> Callable[..., Any]:
    """Returns a compiled program.

    Args:
        program: the program.
        way: one of `WAYS`.
        executor: one of `EXECUTORS`.
    """
    if way == "compile":
        return deplodock.compile(program.function, program.cases[0], executor=executor, dynamic_shapes=program.shapes)
    return torch.compile(program.function, backend="deplodock", options={"executor": executor})


def verdict_of(name: str, way: str, executor: str) -> Verdict:
    """Runs all cases of a program, and compares them with PyTorch.

    Args:
        name: name of the program.
        way: one of `WAYS`.
        executor: one of `EXECUTORS`.
    """
    program, captures = PROGRAMS[name], way == "torch.compile"
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    options = {"capture_scalar_outputs": captures, "capture_dynamic_output_shape_ops": captures}
    with torch._dynamo.config.patch(**options), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run = compiled(program, way, executor)
            outcomes = [_outcome(program, run, i) for i in range(len(program.cases))]
        except DeplodockError as error:
            outcomes = [f"refused: {error}"]
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    return Verdict(name, way, executor, next((o for o in outcomes if o != "right"), "right"), breaks)


def _outcome(program: Program, run: Callable[..., Any], number: int) -> str:
    """Returns `right`, or how a case differs from PyTorch. An error is right where PyTorch raises one."""
    arguments = program.cases[number]
    if number in program.raises:
        try:
            run(*_copied(arguments))
        except (DeplodockError, RuntimeError, IndexError):
            return "right"
        return f"case {number}: expected an error, as PyTorch raises, but got a result"
    expected = program.function(*_copied(arguments))
    try:
        result = run(*_copied(arguments))
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    except AssertionError as error:
        return f"case {number}: wrong: {' '.join(str(error).split())[:200]}"
    except (DeplodockError, RuntimeError) as error:
        return f"case {number}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "right"


def _copied(arguments: Arguments) -> Arguments:
    return pytree.tree_map(torch.clone, arguments)


def page_of(verdicts: Sequence[Verdict]) -> str:
    """Returns the text of the page with the verdicts."""
    columns = list(dict.fromkeys((v.way, v.executor) for v in verdicts))
    by_cell = {(v.program, v.way, v.executor): v for v in verdicts}
    lines = [
        "# Programs whose sizes depend on data",
        "",
        "Written by `python -m benchmarks.compiler.data_sizes --update`. Each program runs with several arguments, for",
        "which its sizes are 0, 1, some and all, and is compared with eager PyTorch. `torch.compile` captures sizes",
        "(`capture_scalar_outputs`, `capture_dynamic_output_shape_ops`). With its default options (*breaks*) the graph",
        "breaks at each size; the number of breaks is shown.",
        "",
        f"| program | {' | '.join(f'{way}, {executor}' for way, executor in columns)} |",
        f"|---|{'---|' * len(columns)}",
    ]
    for name in PROGRAMS:
        cells = [_cell(by_cell.get((name, way, executor))) for way, executor in columns]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    right = [sum(v.outcome == "right" for v in verdicts if (v.way, v.executor) == column) for column in columns]
    lines.append(f"| right of {len(PROGRAMS)} | {' | '.join(map(str, right))} |")
    return "\n".join(lines) + "\n"


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not run"
    breaks = f"{verdict.breaks} break{'s' * (verdict.breaks > 1)}"
    return f"right, {breaks}" if verdict.breaks and verdict.outcome == "right" else verdict.outcome


def _read(journal: Path | None) -> dict[tuple[str, str, str], Verdict]:
    if journal is None or not journal.exists():
        return {}
    verdicts = [Verdict(**entry) for entry in json.loads(journal.read_text(encoding="utf-8"))]
    return {(v.program, v.way, v.executor): v for v in verdicts}


def _selected(ways: Sequence[str], executors: Sequence[str], only: str) -> Iterator[tuple[str, str, str]]:
    for way in ways:
        for executor in executors if way == "compile" else executors[:1]:
            yield from ((name, way, executor) for name in PROGRAMS if only in name)


@click.command()
@click.option("--executor", "executors", multiple=True, type=click.Choice(EXECUTORS), default=EXECUTORS)
@click.option("--way", "ways", multiple=True, type=click.Choice(WAYS), default=WAYS)
@click.option("--only", default="", help="Runs the programs whose names contain this text.")
@click.option("--journal", type=click.Path(path_type=Path), help="Stores the verdicts, so that a run continues.")
@click.option("--update", is_flag=True, help="Writes docs/data_sizes.md.")
@click.option("-v", "--verbose", is_flag=True, help="Prints every verdict.")
def main(
    executors: Sequence[str], ways: Sequence[str], only: str, journal: Path | None, update: bool, verbose: bool
) -> None:
    """Compares programs whose sizes depend on data with PyTorch."""
    verdicts = _read(journal)
    for key in _selected(ways, executors, only):
        if key not in verdicts:
            verdicts[key] = verdict_of(*key)
            if verbose or verdicts[key].outcome != "right":
                click.echo(f"{' '.join(key)}: {verdicts[key].outcome}")
            if journal is not None:
                journal.write_text(json.dumps([vars(v) for v in verdicts.values()], indent=1), encoding="utf-8")
    wrong = [v for v in verdicts.values() if v.outcome != "right"]
    click.echo(f"{len(verdicts) - len(wrong)} right of {len(verdicts)}")
    if update:
        PAGE.write_text(page_of([*verdicts.values()]), encoding="utf-8")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
