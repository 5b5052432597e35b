"""Times ten networks on the CPU, compared with PyTorch, ONNX Runtime and OpenVINO: f32, random weights, inference.

    python -m benchmarks.cpu.peers [--only WORD] [--threads N] [--arm NAME] [--seconds S] [--json FILE]

The compared versions of a network are called arms. `eager` and `inductor` are PyTorch's. `onnxruntime` and `openvino`
run the model that torch.onnx exports. `ours` is deplodock with prepacked weights, like these two. Blocks of calls take
turns, so that disturbances of the machine affect all arms alike. No thread pool spins while another arm runs. An arm
whose package is missing is left out:

    pip install onnx onnxscript onnxruntime openvino
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import torch
from torch import nn

import deplodock
from deplodock.backend.host.timing import by_clock

from ..common.results import geomean
from ..convnets import NETWORKS, network

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

TOLERANCE = 2e-3
"""Largest difference from eager PyTorch, relative to the largest result."""

Args = tuple[torch.Tensor, ...]
Call = Callable[[], Any]


class FirstResult(nn.Module):
    """A model of transformers, reduced to its first result. `options` are passed to its forward method."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.model(*args, **self.options, return_dict=False)[0]


class LstmOutputs(nn.Module):
    """A two-layer LSTM that returns the outputs of all steps, without its states."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(256, 256, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


def bert() -> tuple[nn.Module, Args]:
    """Returns BERT-base, and 128 tokens as its argument."""
    from transformers import BertConfig, BertModel

    return FirstResult(BertModel(BertConfig())), (torch.randint(30000, (1, 128)),)


def vision_transformer() -> tuple[nn.Module, Args]:
    """Returns ViT-S/16, and an image as its argument."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
    return FirstResult(ViTModel(config)), (torch.randn(1, 3, 224, 224),)


def whisper_encoder() -> tuple[nn.Module, Args]:
    """Returns the encoder of Whisper-tiny, and 30 seconds of audio as its argument."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
    return FirstResult(WhisperEncoder(config)), (torch.randn(1, 80, 3000),)


def llama() -> tuple[nn.Module, Args]:
    """Returns four layers of TinyLlama with logits, and 128 tokens."""
    from deplodock.extras.llm.models import build_model, load_config

    config = load_config(str(ROOT / "tests" / "data" / "models" / "tinyllama-1.1b.json"))
    config.num_hidden_layers = 4
    model: Any = build_model(config, torch.float32, seed=0)
    return FirstResult(model, use_cache=False), (torch.randint(config.vocab_size, (1, 128)),)


def lstm() -> tuple[nn.Module, Args]:
    """Returns a two-layer LSTM, and a sequence of 32 steps as its argument."""
    return LstmOutputs(), (torch.randn(1, 32, 256),)


MODELS: dict[str, Callable[[], tuple[nn.Module, Args]]] = {
    **{name: partial(network, name, 1) for name in NETWORKS},
    "BERT-base": bert,
    "ViT-S": vision_transformer,
    "Whisper-tiny": whisper_encoder,
    "TinyLlama, 4 layers": llama,
    "LSTM": lstm,
}
"""Name of a network -> function that returns the network and its arguments."""


def eager(module: nn.Module, args: Args, path: Path) -> Call:
    """Returns the call of a module with eager PyTorch.

    Args:
        module: the module.
        args: its arguments.
        path: folder for files.
    """
    return lambda: module(*args)


def inductor(module: nn.Module, args: Args, path: Path) -> Call:
    """Returns the call of a module, compiled by torch.compile.

    Args:
        module: the module.
        args: its arguments.
        path: folder for files.
    """
    program = torch.compile(module)
    return lambda: program(*args)


def ours(module: nn.Module, args: Args, path: Path) -> Call:
    """Returns the call of a module, compiled by deplodock.

    Args:
        module: the module.
        args: its arguments.
        path: folder for files.
    """
    program = deplodock.compile(module, args, target="cpu", prepack_weights=True, record="none")
    return lambda: program(*args)


def onnxruntime(module: nn.Module, args: Args, path: Path) -> Call:
    """Returns the call of a module in ONNX Runtime, whose idle threads sleep.

    Args:
        module: the module.
        args: its arguments.
        path: folder for files.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(exported(module, args, path), options, ["CPUExecutionProvider"])
    inputs = {i.name: a.numpy() for i, a in zip(session.get_inputs(), args, strict=True)}
    return lambda: session.run(None, inputs)[0]


def openvino(module: nn.Module, args: Args, path: Path) -> Call:
    """Returns the call of a module in OpenVINO, which computes in f32.

    Args:
        module: the module.
        args: its arguments.
        path: folder for files.
    """
    import openvino as ov

    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
    request = ov.Core().compile_model(exported(module, args, path), "CPU", {**hints, **threads}).create_infer_request()
    inputs = [a.numpy() for a in args]
    return lambda: request.infer(inputs)[0]


ARMS = {"eager": eager, "inductor": inductor, "onnxruntime": onnxruntime, "openvino": openvino, "ours": ours}
"""Name of an arm -> function of a module, its arguments and a folder for files. It returns the call to time."""

NEEDS = {"onnxruntime": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}
"""Arm -> required packages in addition to PyTorch."""


def exported(module: nn.Module, args: Args, path: Path) -> str:
    """Exports a module to ONNX, unless the file exists. Returns the file.

    Args:
        module: the module.
        args: its arguments.
        path: folder of the file.
    """
    file = path / "model.onnx"
    if not file.exists():
        torch.onnx.export(module, args, str(file), dynamo=True, verbose=False)
    return str(file)


def measure(name: str, arms: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Times the arms of one network in turns.

    Args:
        name: Name of the network.
        arms: Names of the arms.
        seconds: Time of all samples together.

    Returns:
        A row: the median time of each arm in milliseconds, or the reason why an arm has none.
    """
    torch.manual_seed(0)
    module, args = MODELS[name]()
    module.eval()
    row: dict[str, Any] = {"network": name, "threads": torch.get_num_threads()}
    calls: dict[str, Call] = {}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = module(*args)
        for arm in arms:
            start = perf_counter()
            try:
                call = ARMS[arm](module, args, Path(folder))
                error = float((torch.as_tensor(call()) - expected).abs().max() / expected.abs().max())
            except Exception as failure:  # Exporters and other compilers raise many kinds of errors.
                row[f"{arm}_refused"] = f"{type(failure).__name__}: {' '.join(str(failure).split())[:200]}"
                continue
            row[f"{arm}_compile_seconds"] = round(perf_counter() - start, 1)
            row[f"{arm}_error"] = error
            if not error < TOLERANCE:
                row[f"{arm}_refused"] = f"differs from eager by {error:.1e}"
                continue
            calls[arm] = call
        for arm, timing in by_clock(calls, seconds).items():
            row[arm] = round(timing.median * 1e3, 3)
    row["load"] = round(os.getloadavg()[0], 2)
    return row


def ratio(row: dict[str, Any], arms: tuple[str, ...]) -> float | None:
    """Returns the time of the fastest of some arms divided by ours, or None if one of them is missing."""
    best = min((row[arm] for arm in arms if arm in row), default=None)
    return None if best is None or "ours" not in row else best / row["ours"]


def installed(arm: str) -> bool:
    """Returns true if all packages of an arm are installed. Otherwise prints the missing one."""
    for package in NEEDS.get(arm, ()):
        try:
            version(package)
        except PackageNotFoundError:
            click.echo(f"{arm} is left out: pip install {package}", err=True)
            return False
    return True


@click.command(help=__doc__)
@click.option("--only", default="", help="Networks whose name contains this text.")
@click.option("--threads", type=int, default=None, help="Threads of every arm.")
@click.option("--arm", "arms", type=click.Choice([*ARMS]), multiple=True, default=[*ARMS], help="Arms to time.")
@click.option("--seconds", default=10.0, help="Time of the samples of one network.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the rows to this file.")
def main(only: str, threads: int | None, arms: tuple[str, ...], seconds: float, path: Path | None) -> None:
    """Measures the networks and prints the table."""
    if threads is not None:
        torch.set_num_threads(threads)
    arms, rows = tuple(arm for arm in arms if installed(arm)), list[dict[str, Any]]()
    click.echo(f"{'network':20s}{''.join(f'{arm:>12s}' for arm in arms)}   ms; PyTorch's best, peers' best over ours")
    pytorch, peers = ("eager", "inductor"), ("onnxruntime", "openvino")
    for name in (n for n in MODELS if only in n):
        row = measure(name, arms, seconds)
        rows.append(row)
        times = "".join(f"{row[arm]:12.2f}" if arm in row else f"{'-':>12s}" for arm in arms)
        shares = [ratio(row, pytorch), ratio(row, peers)]
        click.echo(f"{name:20s}{times}   " + "  ".join("-" if s is None else f"{s:.2f}" for s in shares))
        for arm in arms:
            if f"{arm}_refused" in row:
                click.echo(f"  {arm}: {row[f'{arm}_refused']}")
        if path is not None:
            about = {p: version(p) for p in ("torch", *{p for arm in arms for p in NEEDS.get(arm, ())})}
            path.write_text(json.dumps({"versions": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    means = [geomean([s for row in rows if (s := ratio(row, of)) is not None]) for of in (pytorch, peers)]
    click.echo(f"geometric mean: {means[0]:.2f} of PyTorch's best, {means[1]:.2f} of the peers' best")


if __name__ == "__main__":
    main()
