"""Indices that are read from memory: no access leaves its buffer, whatever their values."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import deplodock
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import run_cuda_on_cpu
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.target.architectures import TARGETS

ROWS = 10
FAR = [0, 9, 3, 10, -1, -(2**31), 2**31, 2**32 + 3, -(2**32) + 3, 2**61, 2**63 - 1, -(2**63)]
"""In the range, next to it, and numbers whose lower 32 bits, or a few times them, lie in the range."""


def embedding(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return F.embedding(index, table)


def gather(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.gather(table, 0, index[:, None].expand(-1, 8))


def select(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.index_select(table, 0, index)


def add(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(table).index_add(0, index, table[:1].expand(len(FAR), -1))


def scatter(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(table).scatter_add(0, index[:, None].expand(-1, 8), table[:1].expand(len(FAR), -1))


def advanced(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table[index[:, None], index]


def computed(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.take(table, index * 2**33 + index)


def narrow(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table[(index * 3).int() + 2**30]


def put(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table.index_put((index, index + 1), table[0, 0], accumulate=True)


def along(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.take_along_dim(table, index[:, None], 0)


@pytest.mark.parametrize("function", [embedding, gather, select, add, scatter, advanced, computed, narrow, put, along])
def test_any_number_may_be_an_index(function: Callable[..., torch.Tensor]) -> None:
    """The emulated CUDA agrees with the interpreter for indices that PyTorch mostly refuses."""
    table, valid = torch.arange(8.0 * ROWS).reshape(ROWS, 8) + 1, torch.zeros(len(FAR), dtype=torch.int64)
    compiled = deplodock.compile(function, (table, valid), executor="reference").compilation
    module = compiled.at("kernel")
    args = [table.numpy(), np.array(FAR)]
    (got,), reports = run_cuda_on_cpu(compiled.cuda, make_plan(module), args)
    assert not reports, str(reports[0])
    np.testing.assert_array_equal(got, run(compiled.at("tensor"), args)[0])


def test_types_of_indices() -> None:
    """An index of i64 tensors is computed in 64 bits. Other indices have 32 bits, which are cheaper."""
    table, index = torch.zeros(ROWS, 8), torch.zeros(4, dtype=torch.int64)
    compiled = deplodock.compile(embedding, (table, index), executor="reference").compilation
    assert "(int)" not in compiled.cuda
    assert re.search(r"const long long \w+ = i_?\w*;|const long long", compiled.cuda)
    for arch in TARGETS:
        (use,) = compile_cubin(compiled.cuda, arch).kernels.values()
        assert use.spills == use.stack == 0
    narrow = deplodock.compile(embedding, (table, index.int()), executor="reference").compilation
    rolled = deplodock.compile(lambda x: torch.roll(x, 3, 0) + 1, (table,), executor="reference").compilation
    assert "long long" not in rolled.cuda
    assert "const long long" not in narrow.cuda
