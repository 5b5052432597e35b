"""Integer matmuls are contractions on every target, and wrap as in PyTorch."""

from __future__ import annotations

import pytest
import torch

import deplodock

TYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def _any(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Returns random numbers from the whole range of a type."""
    info, generator = torch.iinfo(dtype), torch.Generator().manual_seed(sum(shape))
    return torch.randint(info.min, info.max, shape, generator=generator, dtype=dtype)


@pytest.mark.parametrize("executor", ["emulator", "simulator", "reference", "cpu"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_as_pytorch(dtype: torch.dtype, executor: str) -> None:
    for m, k, n in ((33, 70, 45), (64, 64, 64), (5, 300, 7), (1, 40, 50)):
        a, b = _any(dtype, m, k), _any(dtype, k, n)
        target = "cpu" if executor == "cpu" else "sm_90a"
        assert torch.equal(deplodock.compile(torch.matmul, (a, b), target=target, executor=executor)(a, b), a @ b)


def test_they_are_contractions() -> None:
    a, b = _any(torch.int32, 64, 70), _any(torch.int32, 70, 96)
    assert "tile.dot" in deplodock.compile(torch.matmul, (a, b), target="sm_90a").ir("tile")


def test_tensor_cores_round_no_integers() -> None:
    """The permission to round to tf32 concerns f32 only."""
    a, b = _any(torch.int32, 64, 64), _any(torch.int32, 64, 64)
    compiled = deplodock.compile(
        torch.matmul, (a, b), target="sm_90a", executor="emulator", f32_matmul_precision="tf32"
    )
    assert torch.equal(compiled(a, b), a @ b)
    assert " atom " not in compiled.ir("tile")
