"""Matmuls of bf16 by AMX: the printed C++ on a model of the AMX registers (`amx_model.hpp`), and as machine code."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import deplodock
from deplodock.backend.cpp.device import Helper
from deplodock.backend.cpu import build, printer
from deplodock.backend.host.compiler import compiler

MODEL = Path(__file__).with_name("amx_model.hpp").read_text()


def _bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def _int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(sum(shape))).to(torch.int8)


def _image(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, padding=1)


PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    **{f"{m}x{n}x{k}": (torch.matmul, (_bf16(m, k), _bf16(k, n))) for m, n, k in (
        (1, 16, 32), (16, 16, 32), (32, 32, 64), (33, 17, 34), (47, 77, 214), (5, 300, 20), (300, 33, 2), (70, 65, 300),
    )},
    "linear": (F.linear, (_bf16(65, 300), _bf16(77, 300))),
    "left transposed": (lambda a, b: a.t() @ b, (_bf16(38, 90), _bf16(38, 77))),
    "both transposed": (lambda a, b: a.t() @ b.t(), (_bf16(38, 45), _bf16(77, 38))),
    "a batch": (torch.matmul, (_bf16(3, 40, 64), _bf16(3, 64, 48))),
    "attention": (F.scaled_dot_product_attention, (_bf16(2, 70, 64), _bf16(2, 70, 64), _bf16(2, 70, 64))),
    "odd depth": (torch.matmul, (_bf16(40, 33), _bf16(33, 40))),
    "odd strides": (lambda a, b: a[:, :64] @ b, (_bf16(40, 65), _bf16(64, 40))),
    "int8": (torch._int_mm, (_int8(70, 216), _int8(216, 72))),
    "int8 linear": (lambda x, w: torch._int_mm(x, w.t()), (_int8(40, 104), _int8(48, 104))),
    "int8 of odd depth": (torch._int_mm, (_int8(33, 43), _int8(43, 24))),
    "convolution": (_image, (_bf16(1, 16, 9, 9), _bf16(32, 16, 3, 3))),
}  # fmt: skip


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Returns a function that replaces the AMX instructions in generated programs by a C++ text.

    The programs are compiled with -O1, because the loops of the model would otherwise take long to compile.
    """
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-D__AMX_BF16__", "-O1"))

    def use(text: str) -> None:
        monkeypatch.setitem(printer._HELPERS, "vector.tiles", Helper("vector.tiles", text))

    return use


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tiles: Callable[[str], None]) -> None:
    function, args = PROGRAMS[name]
    tiles(MODEL)
    found = deplodock.compile(function, args, target="cpu")(*args)
    torch.testing.assert_close(found, function(*args), atol=0.05, rtol=0.02)


@pytest.mark.parametrize(
    "name", ["33x17x34", "linear", "left transposed", "attention", "convolution", "int8", "int8 linear"]
)
def test_products_are_of_tiles(name: str, tiles: Callable[[str], None]) -> None:
    """A model whose tile multiplication adds zeros makes the results wrong, so the program does use AMX tiles."""
    function, args = PROGRAMS[name]
    tiles(MODEL.replace("sum += ", "sum += 0 * "))
    found = deplodock.compile(function, args, target="cpu")(*args)
    if name == "attention":
        assert not torch.allclose(found, function(*args), atol=0.05, rtol=0.02)
    else:
        assert not found.any()


def test_without_permission(tiles: Callable[[str], None]) -> None:
    """If the system does not permit AMX, the program computes matmuls without it."""
    function, args = PROGRAMS["linear"]
    tiles(MODEL.replace("has_tiles = true", "has_tiles = false").replace("sum += ", "sum += 0 * "))
    found = deplodock.compile(function, args, target="cpu")(*args)
    torch.testing.assert_close(found, function(*args), atol=0.05, rtol=0.02)


@pytest.mark.parametrize(("name", "dot"), [("linear", "tdpbf16ps"), ("int8 linear", "tdpbssd")])
def test_machine_code(name: str, dot: str, tmp_path: Path) -> None:
    if shutil.which("objdump") is None or "g++" not in compiler():
        pytest.skip("needs g++ and objdump")
    function, args = PROGRAMS[name]
    source, code = tmp_path / "text.cpp", tmp_path / "text.o"
    source.write_text(deplodock.compile(function, args, target="cpu").compilation.cpp)
    flags = [f for f in build.FLAGS if f != "-shared"]
    made = subprocess.run([compiler(), *flags, "-march=sapphirerapids", "-c", "-o", code, source], check=False)
    if made.returncode:
        pytest.skip("the compiler does not know the processor")
    listing = subprocess.run(["objdump", "-d", code], check=True, capture_output=True, text=True).stdout
    for instruction in ("ldtilecfg", "tileloadd", f"{dot} %tmm6,%tmm4,%tmm0", "tilestored", "tilerelease"):
        assert instruction in listing
