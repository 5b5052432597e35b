"""The functions of vectors, against float64: every f16, and a million numbers of f32."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import torch
from cpu.alone import Machine
from cpu.samples import of_function

import deplodock

MOST_ULPS = 1.5

_RANDOM = torch.Generator().manual_seed(0)
_MANY = 1 << 18
INPUTS = torch.cat(
    [
        torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16).float(),
        torch.empty(_MANY).uniform_(-110, 100, generator=_RANDOM),
        torch.randn(_MANY, generator=_RANDOM),
        torch.empty(_MANY).uniform_(-87, 88, generator=_RANDOM).exp(),
        torch.randint(-(2**31), 2**31, (_MANY,), generator=_RANDOM).to(torch.int32).view(torch.float32),
    ]
)


@pytest.mark.parametrize("name", "exp exp2 expm1 log log2 log1p tanh erf sin cos rsqrt sqrt".split())
def test_error(name: str) -> None:
    function = getattr(torch, name)
    found = deplodock.compile(function, (INPUTS,), target="cpu")(INPUTS)
    wanted = function(INPUTS.double())
    nearest = wanted.float()
    finite = nearest.isfinite()
    assert torch.equal(found[~finite].isnan(), nearest[~finite].isnan())
    assert torch.equal(found[~finite].nan_to_num(), nearest[~finite].nan_to_num())
    ulps = (found.double() - wanted).abs() / torch.from_numpy(np.spacing(nearest.abs().numpy())).double()
    assert ulps[finite].max().item() <= MOST_ULPS, INPUTS[finite][ulps[finite].argmax()].item()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a processor of this kind")
def test_angles_without_fused_instructions() -> None:
    """Multiples of pi / 2 up to 4096 and what is near them: all digits of what is left after these come from pi."""
    turns = torch.arange(-2600, 2600, dtype=torch.float64) * (torch.pi / 2)
    x = torch.cat([turns.float(), turns.float().nextafter(torch.tensor(9e9)), torch.empty(20000).uniform_(-4096, 4096)])
    sample = of_function("turns", lambda x: torch.stack([torch.sin(x), torch.cos(x)]), [x])
    (found,) = Machine("g++", ("-O1", "-march=x86-64")).run(sample.module, sample.args)
    wanted = torch.stack([torch.sin(x.double()), torch.cos(x.double())])
    ulps = (found.double() - wanted).abs() / torch.from_numpy(np.spacing(wanted.float().abs().numpy())).double()
    assert ulps.max().item() <= 2 * MOST_ULPS, x[ulps.amax(0).argmax()].item()
