"""Checked programs: an index that PyTorch refuses raises an error with operator, line, range and index."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import deplodock
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.reference import run
from deplodock.errors import CompileError, ExecutionError
from deplodock.tools.cli import main

ROWS, WIDTH = 8, 5
TABLE = torch.arange(float(ROWS * WIDTH)).reshape(ROWS, WIDTH)
VALUES = [0, 7, 8, -1, -8, -9, 2**31, -(2**31) - 1, 2**40]
EXECUTORS = ["reference", "simulator", "emulator"]

Indexing = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

OPERATORS: dict[str, Indexing] = {
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding_bag, which is an embedding": lambda x, i: F.embedding_bag(i, x, torch.zeros(1, dtype=torch.int64)),
    "gather": lambda x, i: torch.gather(x, 0, i[:, None]),
    "index": lambda x, i: x[i],
    "index_add": lambda x, i: torch.index_add(x, 0, i, x[:3]),
    "index_copy": lambda x, i: torch.index_copy(x, 0, i, x[:3]),
    "index_fill": lambda x, i: torch.index_fill(x, 0, i, 2.0),
    "index_put": lambda x, i: x.index_put((i,), x[:3]),
    "index_reduce": lambda x, i: x.clone().index_reduce(0, i, x[:3], "amax"),
    "index_select": lambda x, i: torch.index_select(x, 0, i),
    "put": lambda x, i: x[:, 0].contiguous().put(i, x[:3, 1].contiguous()),
    "scatter": lambda x, i: torch.scatter(x, 0, i[:, None], 1.0),
    "scatter_add": lambda x, i: torch.scatter_add(x, 0, i[:, None], x[:3]),
    "scatter_reduce": lambda x, i: torch.scatter_reduce(x, 0, i[:, None], x[:3], "amax"),
    "take, which is an index": lambda x, i: torch.take(x[:, 0].contiguous(), i),
    "take_along_dim, which is a gather": lambda x, i: torch.take_along_dim(x, i[:, None], 0),
    "flat take_along_dim, which is a gather": lambda x, i: torch.take_along_dim(x[:, 0].contiguous(), i),
}


def compiled(function: Any, *args: torch.Tensor, executor: str = "reference", **options: Any) -> Any:
    return deplodock.compile(function, args, executor=executor, checked=True, **options)


@pytest.mark.parametrize("name", OPERATORS)
def test_stops_where_pytorch_does(name: str) -> None:
    """For each index, either both PyTorch and the program raise, or their results are equal."""
    function = OPERATORS[name]
    program = compiled(function, TABLE, torch.tensor([0, 1, 2]))
    for value in VALUES:
        index = torch.tensor([3, value, 4])
        try:
            wanted = function(TABLE, index)
        except (IndexError, RuntimeError):
            with pytest.raises(ExecutionError) as error:
                program(TABLE, index)
            assert "test_checked.py:" in str(error.value.location)
            assert re.fullmatch(rf"an index is outside \[(-8|0), 8\): {value}", error.value.reason)
            assert name.split()[-1] in str(error.value.operator)
        else:
            torch.testing.assert_close(program(TABLE, index), wanted)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["embedding", "index", "index_add", "scatter"])
def test_every_executor_stops(name: str, executor: str) -> None:
    program = compiled(OPERATORS[name], TABLE, torch.tensor([0, 1, 2]), executor=executor)
    index = torch.tensor([3, 0, 7])
    torch.testing.assert_close(program(TABLE, index), OPERATORS[name](TABLE, index))
    for value in (8, -9, 2**32 + 1):
        with pytest.raises(
            ExecutionError, match=rf"test_checked.py:\d+: (F|torch|x)\W.*outside \[-?\d, 8\): {value}\b"
        ):
            program(TABLE, torch.tensor([3, value, 7]))


# Every one of these has lanes without an element: there the index is not loaded, so that `i - 7`, say, is -7.


def padded(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.pad(torch.index_select(x, 0, i - 7), (0, 0, 2, 1))


def joined(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.index_select(x, 0, i - 7), x, F.embedding(i - 6, x)])


def summed(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.index_select(x, 0, i - 7).sum(0)


def normed(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.gather(x, 1, (i - 7)[None].expand(ROWS, -1) % WIDTH), -1)


def twice(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.embedding(torch.take(i - 7, (i - 7).clamp(max=2)), x)


def product(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.index_select(x, 0, i - 7) @ x.t()


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("function", [padded, joined, summed, normed, twice, product])
def test_lanes_without_an_element_do_not_stop(function: Indexing, executor: str) -> None:
    index = torch.tensor([7, 9, 8])
    program = compiled(function, TABLE, index, executor=executor)
    torch.testing.assert_close(program(TABLE, index), function(TABLE, index))
    if executor == "reference":
        for level in ("tensor", "loop", "tile"):
            assert "payload.assert" in program.ir(level)
            (found,) = run(program.compilation.at(level), [TABLE.numpy(), index.numpy()])
            np.testing.assert_allclose(found, function(TABLE, index).numpy(), rtol=1e-6)
    if function is not normed:  # the one that takes the remainder
        with pytest.raises(ExecutionError, match=r"outside \[-?\d, \d\)"):
            program(TABLE, torch.tensor([7, 9, 6]) - (10 if function is twice else 0))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_long_rows_in_chunks(executor: str) -> None:
    """A reduction in chunks, whose last one is short."""
    x, index = torch.randn(3, 5000), torch.randint(4, 5004, (3, 5000))

    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.gather(x, 1, i - 4).exp().sum(-1)

    program = compiled(function, x, index, executor=executor, schedule="block=1 chunk=1024")
    torch.testing.assert_close(program(x, index), function(x, index))
    index[2, 4999] = 3
    with pytest.raises(ExecutionError, match=r"torch.gather\(x, 1, i - 4\): an index is outside \[0, 5000\): -1"):
        program(x, index)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_sizes_known_at_run_time(executor: str) -> None:
    rows, count = torch.export.Dim("rows", min=2, max=100), torch.export.Dim("count", min=2, max=100)
    shapes = ({0: rows}, {0: count})
    program = compiled(lambda x, i: x[i - 7], TABLE, torch.tensor([7, 8]), executor=executor, dynamic_shapes=shapes)
    table, index = torch.randn(9, WIDTH), torch.tensor([7, 15, -2, 8, 9])
    torch.testing.assert_close(program(table, index), table[index - 7])
    with pytest.raises(ExecutionError, match=r"x\[i - 7\]: an index is outside \[-rows, rows\): 9\b"):
        program(table, torch.tensor([7, 16, 8, 7, 9]))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_not_computed_is_not_asserted(executor: str) -> None:
    """Targets that a loss ignores are not checked."""
    x, target = torch.randn(4, WIDTH), torch.tensor([1, -100, 4, 0])
    program = compiled(F.cross_entropy, x, target, executor=executor)
    torch.testing.assert_close(program(x, target), F.cross_entropy(x, target))
    with pytest.raises(ExecutionError, match=r"torch.*: an index is outside \[0, 5\): 5"):
        program(x, torch.tensor([1, -100, 5, 0]))


def test_known_indices_need_no_check() -> None:
    program = compiled(lambda x: x[torch.arange(ROWS).flip(0)], TABLE)
    assert "payload.assert" in program.ir("tensor")
    assert "payload.assert" not in program.ir("loop")


def test_only_checked_programs_assert() -> None:
    index = torch.tensor([0, 1, 2])
    program = deplodock.compile(OPERATORS["index"], (TABLE, index), executor="reference")
    assert all("assert" not in program.ir(level) for level in ("tensor", "loop", "tile", "kernel", "cuda"))
    assert torch.equal(program(TABLE, torch.tensor([0, 8, -9])), torch.cat([TABLE[:1], torch.zeros(2, WIDTH)]))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_printed_text_compiles(target: str) -> None:
    program = compiled(lambda x, i, j: x[i] + x[j], TABLE, torch.tensor([0, 1]), torch.tensor([0, 1]), target=target)
    text = program.ir("cuda")
    assert text.count("asserted(") >= 3
    assert text.count('aten.index.Tensor: an index is outside [-8, 8)"') == 2
    assert 'printf("%s: %lld\\n", what, x); asm volatile("trap;");' in text
    assert compile_cubin(text, target).cubin


def test_places_keep_kernels_apart() -> None:
    """Two lookups that differ in their line alone are two kernels, so that each names its own line."""

    def first(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return F.embedding(i, x).cumsum(0)

    def both(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return first(x, i), F.embedding(j, x).cumsum(0)

    good, bad = torch.tensor([0, 1]), torch.tensor([0, 9])
    program = compiled(both, TABLE, good, good.clone(), executor="emulator")
    lines = []
    for args in ((bad, good), (good, bad)):
        with pytest.raises(ExecutionError, match=r"test_checked.py:\d+") as error:
            program(TABLE, *args)
        lines += re.findall(r"test_checked.py:(\d+)", str(error.value))
    assert int(lines[1]) == int(lines[0]) + 3  # the lines of the two lookups


def test_torch_compile_takes_the_option() -> None:
    options = {"executor": "reference", "checked": True}
    program = torch.compile(OPERATORS["index"], backend="deplodock", options=options)
    assert torch.equal(program(TABLE, torch.tensor([0, -8])), TABLE[[0, 0]])
    with pytest.raises(ExecutionError, match="outside"):
        program(TABLE, torch.tensor([0, 8]))


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = "torch.ones(4, 2)[torch.tensor([1, -4])]"
    assert main(["run", "-c", code, "--checked", "--executor", "emulator"]) == 0
    assert main(["compile", "-c", code, "--checked", "--ir", "kernel"]) == 0
    out = capsys.readouterr().out
    assert "payload.assert" in out
    assert 'options = "--checked' in out


KNOWN: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "in the code": (lambda x: x[torch.tensor([0, 9])], r"x\[torch.*\]: an index is outside \[-8, 8\): 9"),
    "a list": (lambda x: x[:, [0, -6]], r"x\[:, .*\]: an index is outside \[-5, 5\): -6"),
    "computed": (lambda x: F.embedding(torch.tensor([1, 3]) * 3 - 2, x[:7]), r"F.embedding\(.*\[0, 7\): 7"),
    "counted": (lambda x: torch.index_select(x, 0, torch.arange(9)), r"torch.index_select\(.*\[0, 8\): 8"),
    "written to": (lambda x: x.scatter(1, torch.tensor([[5]]), 1.0), r"x.scatter\(.*\[0, 5\): 5"),
    "in place": (lambda x: x.clone().index_fill_(0, torch.tensor([-9]), 1.0), r"x.*index_fill_.*\[-8, 8\): -9"),
    "in a tensor outside": (lambda x: torch.take(x, OUTSIDE), r"torch.take\(x, OUTSIDE\): .*\[-40, 40\): -41"),
}
OUTSIDE = torch.tensor([3, -41])


@pytest.mark.parametrize("name", KNOWN)
def test_known_indices_are_refused_at_once(name: str) -> None:
    function, message = KNOWN[name]
    with pytest.raises((IndexError, RuntimeError)):
        function(TABLE)
    with pytest.raises(CompileError, match=rf"^\S*test_checked.py:\d+: {message}$") as error:
        deplodock.compile(function, (TABLE,))
    assert not isinstance(error.value, ExecutionError)


def test_known_indices_that_are_legal() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[torch.arange(4) * 2 - 1, torch.tensor([4, -5, 0, -1])]

    assert torch.equal(deplodock.compile(function, (TABLE,))(TABLE), function(TABLE))


def test_buffers_may_still_change() -> None:
    module = torch.nn.Module()
    module.register_buffer("index", torch.tensor([0, 9]))
    module.forward = lambda x: x[module.index]
    program = deplodock.compile(module, (TABLE,))
    module.index.fill_(2)
    assert torch.equal(program(TABLE), TABLE[[2, 2]])
