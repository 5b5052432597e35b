"""CPU targets with options, such as `cpu{isa=avx2 cores=4}`."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import deplodock
from deplodock.backend.cpu import build
from deplodock.backend.host.compiler import run_compiler
from deplodock.errors import TargetError
from deplodock.target.architectures import ISAS
from deplodock.target.attribute import get_target
from deplodock.target.host import has_isa

HERE = [isa for isa in ISAS if has_isa(isa)]

X, W = torch.randn(70, 90), torch.randn(50, 90)


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w)).softmax(-1)


@pytest.mark.parametrize("isa", HERE)
def test_programs_are_built_for_an_instruction_set(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = build.build_at

    def build_at(target: Path, text: str, march: str = "native", extra: tuple[str, ...] = ()) -> None:
        asked.append(march)
        real(target, text, march, extra)

    def always_made(folder: str, name: str, make: Callable[[Path], None]) -> Path:
        make(tmp_path / name)
        return tmp_path / name

    monkeypatch.setattr(build, "build_at", build_at)
    monkeypatch.setattr(build, "cached_file", always_made)
    found = deplodock.compile(product, (X, W), target=f"cpu{{isa={isa}}}")(X, W)
    torch.testing.assert_close(found, product(X, W))
    assert asked == [ISAS[isa].march]


@pytest.mark.parametrize("isa", ISAS)
def test_plans_are_for_its_vectors(isa: str) -> None:
    found, plain = get_target(f"cpu{{isa={isa} cores=3}}"), get_target("cpu")
    assert found.core is not None
    assert plain.core is not None
    assert (found.core.lanes, found.core.registers) == (ISAS[isa].lanes, ISAS[isa].registers)
    assert found.sms == 3
    each = found.rates.fma / 3 / found.core.lanes
    assert each == pytest.approx(plain.rates.fma / plain.sms / plain.core.lanes)
    assert found.rates.memory == plain.rates.memory


def test_as_many_cores_as_it_says() -> None:
    """The option `cores` is the number of threads that the C++ may use for a launch."""
    x = torch.randn(1 << 20)
    for target, most in (("cpu{cores=1}", 1), ("cpu{cores=3}", 3), ("cpu", 1 << 16)):
        compiled = deplodock.compile(torch.exp, (x,), target=target)
        torch.testing.assert_close(compiled(x), x.exp())
        (placed,) = compiled.executor.program._placed.values()  # pyright: ignore
        assert placed.parts[0].numbers[2] == most  # pyright: ignore


@pytest.mark.parametrize("options", ["isa=mmx", "cores=0", "cores=2 cores=3", "x", "lanes=8", "isa="])
def test_what_is_not_known_is_refused(options: str) -> None:
    with pytest.raises(TargetError, match="isa=native"):
        get_target(f"cpu{{{options}}}")


def test_an_instruction_set_of_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deplodock.frontend.executors.has_isa", lambda isa: False)
    compiled = deplodock.compile(product, (X, W), target="cpu{isa=neon}", executor="reference")
    assert compiled.ir("cuda")  # the text is there to be read
    with pytest.raises(TargetError, match="does not have neon"):
        deplodock.compile(product, (X, W), target="cpu{isa=neon}")(X, W)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86")
@pytest.mark.parametrize("march", ["skylake-avx512", "sapphirerapids", "haswell"])
def test_vectors_stay_whole(march: str, tmp_path: Path) -> None:
    """g++ keeps the vector width of the text, although its tuning for some processors would split vectors."""
    source, code = tmp_path / "product.cpp", tmp_path / "product.s"
    source.write_text(deplodock.compile(F.linear, (X, W), target="cpu").ir("cuda"))
    run_compiler(*build.options(march), "-S", "-o", str(code), str(source))
    found = re.findall(r"vfmadd\w+([ps]s)\s.*%([xyz])mm", code.read_text())
    assert set(found) == {("ps", "y" if march == "haswell" else "z")}
