"""Decoder layers of TinyLlama and Qwen2.5-7B: small ones equal transformers, full-size ones become few kernels."""

from __future__ import annotations

import pytest
import torch
from support.layers import MODELS, make_layer

from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.export import capture
from deplodock.frontend.comparison import compare, tolerances
from deplodock.frontend.executors import make_executor

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS)
def test_small_layer_equals_transformers(model: str, dtype: str) -> None:
    layer = make_layer(model, DTYPES[dtype], small=True)
    hidden = torch.randn(1, 9, layer.config.hidden_size, dtype=DTYPES[dtype])
    captured = capture(layer, (hidden,))
    compilation = CompiledFunction(captured, "sm_90a", "reference").compilation
    with torch.no_grad():
        expected = [layer(hidden)]
    allowed = tolerances(compilation.at("tensor"))
    for executor in ("reference", "simulator", "emulator"):
        actual = make_executor(executor, compilation).run(captured.bind((hidden,)))
        differences = compare(actual, expected, allowed)
        assert all(d.ok for d in differences), (executor, differences)


@pytest.mark.parametrize("model", MODELS)
def test_small_layer_replays_under_other_inputs(model: str) -> None:
    layer = make_layer(model, torch.float32, small=True)
    compiled = CompiledFunction(capture(layer, (torch.randn(1, 5, 48),)), "sm_90a", "reference")
    other = torch.randn(1, 5, 48)
    with torch.no_grad():
        torch.testing.assert_close(compiled(other), layer(other), rtol=1e-5, atol=1e-5)
    assert to_numpy(other).shape == (1, 5, 48)


@pytest.mark.parametrize(("model", "dtype"), [("tinyllama", "bf16"), ("qwen2.5-7b", "f32")])
def test_full_size_layer_compiles(model: str, dtype: str) -> None:
    """`test_whole_models.py` compiles both in bf16."""
    layer = make_layer(model, DTYPES[dtype], small=False)
    hidden = torch.randn(1, 512, layer.config.hidden_size, dtype=DTYPES[dtype])
    compiled = CompiledFunction(capture(layer, (hidden,)), "sm_90a", "reference")
    cuda = compiled.ir("cuda")
    kernels = cuda.count("__global__")
    if model == "tinyllama":
        assert kernels <= 8
        assert _nests_with_an_exponential_between_contractions(compiled.ir("loop")) == 1
    result = compile_cubin(cuda, "sm_90a")
    assert len(result.kernels) == kernels
    assert not result.warnings


def _nests_with_an_exponential_between_contractions(text: str) -> int:
    """How many nests hold a whole attention: stages with a maximum, an exponential and two contractions."""
    nests = text.split("loop.nest")[1:]
    return sum("loop.reduce max" in n and "math.exp" in n and n.count("loop.reduce add") >= 3 for n in nests)
