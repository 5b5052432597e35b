"""Scatters and gathers along contiguous elements, as vectors: read-modify-write, and a load with a permutation."""

from __future__ import annotations

import platform

import pytest
import torch
import torch.nn.functional as F
from support.alone import Machine
from support.cpu_samples import of_function

import deplodock

ISAS = ["avx512", "avx2", "sse"]


def _kernel(compiled: object) -> str:
    """Returns the C++ of the first kernel."""
    return compiled.compilation.cpp.partition("static void k0(")[2].partition("void k0_grid(")[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("isa", ISAS)
def test_rows_are_combined_as_vectors(isa: str) -> None:
    """Rows that do and do not fill vectors, at repeated indices, in several types, with a NaN."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(30, (75,), generator=generator)
    kinds = ((64, torch.float32), (37, torch.int64), (24, torch.float64))
    pairs = [[(torch.randn(n, c, generator=generator) * 9).to(t) for n in (30, 75)] for c, t in kinds]
    pairs[0][1][5, 3] = torch.nan

    def function(index: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
        scattered = list[torch.Tensor]()
        for x, y in zip(tensors[::2], tensors[1::2], strict=True):
            scattered += [x.index_add(0, index, y), x.index_reduce(0, index, y, "amax")]
        return scattered

    args = (index, *(tensor for pair in pairs for tensor in pair))
    compiled = deplodock.compile(function, args, target=f"cpu{{isa={isa}}}")
    assert "combine_first(&" in _kernel(compiled)
    assert "atomic_add(" not in compiled.compilation.cpp.partition("static void k0(")[2]
    for result, wanted in zip(compiled(*args), function(*args), strict=True):
        torch.testing.assert_close(result, wanted, equal_nan=True)


def test_writes_at_an_index_of_their_own_follow_the_order_of_memory() -> None:
    """Each written element has its own index. Values and indices are loaded as vectors and need no array."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(24, 64, generator=generator) for _ in range(2))
    index = torch.randint(64, (24, 64), generator=generator)
    added = deplodock.compile(lambda x, i, y: x.scatter_add(1, i, y), (x, index, y), target="cpu")
    assert "PER_LANE if" in _kernel(added)
    assert "alignas" not in _kernel(added)
    torch.testing.assert_close(added(x, index, y), x.scatter_add(1, index, y))


@pytest.mark.parametrize("isa", ISAS)
def test_gathers_within_a_vector(isa: str) -> None:
    """Gathers from a narrow range: padded borders, an enlarged image, and windows that exceed the buffer."""
    x = torch.randn(2, 5, 56, generator=torch.Generator().manual_seed(0))

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        padded = [F.pad(x, (3, 4), mode=mode) for mode in ("reflect", "circular", "replicate")]
        return [*padded, F.interpolate(x, scale_factor=2, mode="nearest"), F.interpolate(x, scale_factor=2)]

    f = deplodock.compile(function, (x,), target=f"cpu{{isa={isa}}}")
    assert "gather(&" in f.compilation.cpp.partition("static void k0(")[2]
    for result, wanted in zip(f(x), function(x), strict=True):
        assert torch.equal(result, wanted)
    others = [torch.arange(0, 64, 2), torch.arange(529, 561, 2), torch.arange(-3, 13, 2), torch.arange(30, -2, -2)]
    ends = torch.cat([torch.arange(545, 577), torch.arange(16).flip(0), torch.arange(-3, 5), *others])
    flat = x.flatten()
    g = deplodock.compile(lambda x, i: x[i] * 2, (flat, ends), target=f"cpu{{isa={isa}}}")
    inside = (ends >= -560) & (ends < 560)
    assert torch.equal(g(flat, ends), 2 * flat[ends.where(inside, 0)].where(inside, 0))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a processor of this kind")
def test_gathers_within_a_vector_read_nothing_behind_the_buffer() -> None:
    if "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("this machine has no AVX2")
    x, i = torch.randn(61), torch.arange(57, 61).repeat(8)
    sample = of_function("ends", lambda x, i: x[i] * 2, [x, i])
    machine = Machine("g++", ("-O1", "-march=x86-64-v3", "-fsanitize=address"))
    (found,) = machine.run(sample.module, sample.args)
    assert torch.equal(found, 2 * x[i])
    i = torch.arange(45, 61, 2).repeat(4)  # two vectors of eight elements, of which the second ends at the buffer
    (found,) = machine.run(sample.module, [x, i])
    assert torch.equal(found, 2 * x[i])


def test_lanes_of_gathers_follow_what_is_contiguous() -> None:
    """Points of several planes: lanes run along the points, in which the result and the indices are contiguous."""
    generator = torch.Generator().manual_seed(0)
    x, i, j = torch.randn(8, 20, 20), *(torch.randint(20, (300,), generator=generator) for _ in range(2))
    function = lambda x, i, j: x[:, i, j] + x[:, j, i] * x[:, j, j]  # noqa: E731
    taken = deplodock.compile(function, (x, i, j), target="cpu", schedule="block=4,512")
    assert "each<float>" not in _kernel(taken)
    assert torch.equal(taken(x, i, j), function(x, i, j))
