"""Whole models: forward passes equal to transformers', layers and kernels shared, full size without weights."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support import TESTS
from support.tiny_models import tiny_config, tiny_model
from torch import nn
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.dialects.scf import ForOp
from xdsl.ir import Operation

from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.host.launch_plan import make_plan
from deplodock.dialects.kernel import FuncOp as KernelOp
from deplodock.dialects.loop.work import count_work
from deplodock.dialects.payload import shape_of
from deplodock.dialects.tile import DotOp, KernelOp as TileKernelOp
from deplodock.errors import CaptureError
from deplodock.extras.llm.models import ModelError, build_model, load_config
from deplodock.extras.llm.steps import cache_shape, capture_step, compile_model, describe
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.export import capture
from deplodock.frontend.comparison import compare, tolerances
from deplodock.frontend.executors import make_executor
from deplodock.tools.cli import main

CONFIGS = TESTS / "data" / "models"
_SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def bert() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.BertConfig(vocab_size=67, max_position_embeddings=32, **_SMALL)
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    return transformers.BertModel(config), {"input_ids": torch.randint(0, 67, (2, 9)), "attention_mask": mask}


def vit() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ViTConfig(image_size=16, patch_size=4, **_SMALL)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


def t5() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.T5Config(vocab_size=67, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    ids = {"input_ids": torch.randint(0, 67, (1, 9)), "decoder_input_ids": torch.randint(0, 67, (1, 5))}
    return transformers.T5Model(config), {**ids, "use_cache": False}


def whisper() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.WhisperConfig(
        vocab_size=67,
        d_model=32,
        num_mel_bins=8,
        max_source_positions=12,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        **{f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in _WHISPER.items()},
    )
    inputs = {"input_features": torch.randn(1, 8, 24), "decoder_input_ids": torch.randint(0, 67, (1, 5))}
    return transformers.WhisperModel(config), {**inputs, "use_cache": False}


_WHISPER = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}


@pytest.mark.parametrize("make", [bert, vit, t5, whisper])
def test_forward_equals_transformers(make: Any) -> None:
    torch.manual_seed(0)
    model, inputs = make()
    model.eval()
    captured = capture(model, (), inputs)
    compilation = CompiledFunction(captured, "sm_90a", "reference").compilation
    arguments = captured.bind((), inputs)
    actual = captured.restore(make_executor("reference", compilation).run(arguments), arguments)
    with torch.no_grad():
        expected = model(**inputs)
    assert type(actual) is type(expected)
    found = compare(captured.flatten(actual), captured.flatten(expected), tolerances(compilation.at("tensor")))
    assert found
    assert all(d.ok for d in found), found


def kernels(layers: int, level: str = "kernel") -> tuple[int, int, int]:
    """Distinct kernels, launches and ops at the kernel level of a decode step of a Llama with that many layers."""
    compiled = compile_model(build_model(tiny_config("llama", num_hidden_layers=layers)), context=16, phases=["decode"])
    module = compiled.compilations["decode"].at(level)
    functions = [f for f in module.ops if isinstance(f, KernelOp)]
    return len(functions), len(make_plan(module).launches), sum(1 for f in functions for _ in f.walk())


def test_kernels_of_equal_layers_are_shared() -> None:
    few, many = kernels(2), kernels(4)
    assert few[0] == many[0]
    assert few[2] == many[2]
    per_layer = (many[1] - few[1]) // 2
    assert few[1] + 2 * per_layer == many[1]
    assert 4 <= per_layer <= 8


def test_every_layer_is_a_call_of_one_function() -> None:
    model = build_model(tiny_config("qwen2", num_hidden_layers=4))
    compiled = compile_model(model, context=16, phases=["decode"])
    for level in ("tensor", "loop", "tile"):
        module = compiled.compilations["decode"].at(level)
        names = [f.sym_name.data for f in module.ops if isinstance(f, FuncOp)]
        assert names == ["layer", "main"], level
        assert sum(isinstance(op, CallOp) for op in module.walk()) == 4, level


def test_different_kinds_of_layers_are_kept_apart() -> None:
    """Gemma-3 has layers with and without a window, in turns."""
    model = build_model(tiny_config("gemma3", num_hidden_layers=4))
    module = compile_model(model, context=16, phases=["decode"]).compilations["decode"].at("tensor")
    assert any(isinstance(op, CallOp) for op in module.walk())


def test_layers_of_an_ordinary_module_are_shared() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 16)
    captured = capture(model, (x,))
    compiled = CompiledFunction(captured, "sm_90a", "simulator")
    assert "func.call @layer" in compiled.ir("tensor")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_parameters_are_on_meta_and_buffers_are_real() -> None:
    model = build_model(tiny_config("llama"))
    assert all(p.device.type == "meta" for p in model.parameters())
    buffers = dict(model.named_buffers())
    frequencies = buffers["model.rotary_emb.inv_freq"]
    torch.testing.assert_close(frequencies, dict(tiny_model("llama").named_buffers())["model.rotary_emb.inv_freq"])
    captured = capture_step(model, cache_shape(model.config, torch.float32, 16), 1)
    tensors = {b.name: b.tensor for b in captured.bindings}
    torch.testing.assert_close(tensors["model.model.rotary_emb.inv_freq"], frequencies)


def products(module: ModuleOp) -> int:
    """Multiplications of floats that all blocks of all kernels of the tile level do, whatever they are for."""

    def inside(op: Operation) -> int:
        total, steps = 0, 1
        if op.name == "arith.mulf":
            total = prod(shape_of(op.results[0].type))
        elif isinstance(op, DotOp):
            total = prod(shape_of(op.lhs.type)) * shape_of(op.result.type)[-1]
        if isinstance(op, ForOp):
            high, step = (int(v.owner.value.value.data) for v in (op.ub, op.step))
            low = int(op.lb.owner.value.value.data) if isinstance(op.lb.owner, Operation) else 0  # a block's number
            steps = -(-(high - low) // step)
        return total + steps * sum(inside(o) for region in op.regions for block in region.blocks for o in block.ops)

    return sum(prod(k.grid_shape) * inside(k) for k in module.ops if isinstance(k, TileKernelOp))


@pytest.mark.parametrize(("name", "length"), [("tinyllama-1.1b", 512), ("qwen2.5-7b", 1)])
def test_full_size_layers_compile(name: str, length: int) -> None:
    config = load_config(str(CONFIGS / f"{name}.json"))
    config.num_hidden_layers = 2
    phase = "decode" if length == 1 else "prefill"
    compiled = compile_model(build_model(config), context=2048, prefill=length, phases=[phase])
    (facts,) = describe(compiled)
    assert facts["tokens"] == length
    assert max(facts["launches_per_layer"]) <= 9
    cubin = compile_cubin(compiled.compilations[phase].cuda, "sm_90a")
    assert len(cubin.kernels) == facts["kernels"]
    assert not cubin.warnings
    least = sum(work.flops for work in count_work(compiled.compilations[phase].at("loop")))
    assert products(compiled.compilations[phase].at("tile")) < 1.5 * least / 2  # a product and a sum are two


def test_the_command_line_compiles_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {**tiny_config("llama").to_dict(), "model_type": "llama", "dtype": "float32"}
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(fields))
    out = str(tmp_path / "out")
    assert main(["compile", str(path), "--length", "4", "--context", "16", "-o", out, "--json"]) == 0
    captured = capsys.readouterr()
    assert [s["phase"] for s in json.loads(captured.out)["steps"]] == ["prefill", "decode"]
    assert "distinct kernels" in captured.err
    assert main(["generate", out, "--prompt-ids", "1,2"]) == 1
    assert "was saved without the weights" in capsys.readouterr().err


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-family"}')
    (tmp_path / "list.json").write_text("[1]")
    for name in (tmp_path, tmp_path / "list.json", tmp_path / "config.json"):
        with pytest.raises(ModelError) as caught:
            load_config(str(name))
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError):
        build_model(transformers.ViTConfig())
    with pytest.raises(CaptureError, match="does not fit a cache of 16"):
        capture_step(build_model(tiny_config("llama")), cache_shape(tiny_config("llama"), torch.float32, 16), 17)
