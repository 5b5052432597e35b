"""`deplodock compile | run | tune MODEL.onnx`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...tools.modes import Source

if TYPE_CHECKING:
    import torch

    from ...tools.evaluate import Program
    from .model import OnnxModule


class OnnxSource(Source):
    """An ONNX model, called with random inputs."""

    metavar = "MODEL.onnx"
    about = dict.fromkeys(
        ("compile", "run", "tune"), "A MODEL.onnx is called with random inputs; sizes that it names vary."
    )

    def matches(self, file: str) -> bool:
        return Path(file).suffix == ".onnx"

    def program(self, file: str) -> Program:
        """Returns the program of a model. `run` compares it with onnxruntime, if that is installed."""
        from ...tools.evaluate import Program
        from .api import from_onnx

        module = from_onnx(file)
        args = module.example_inputs()
        names = tuple(i.name for i in module.inputs)
        peer = _runtime(module, file)
        options = {} if peer is None else {"expected": peer, "peer": "onnxruntime"}
        return Program(module, args, names=names, place=(file, 1), dynamic_shapes=module.dynamic_shapes(), **options)


def _runtime(module: OnnxModule, file: str) -> Callable[..., Any] | None:
    """Returns the model in onnxruntime, or None if that is not installed or lacks an operator of the model."""
    try:
        import onnxruntime
    except ImportError:
        return None
    import numpy as np

    from ...frontend.capture.arrays import to_numpy, to_torch
    from .values import OnnxError, reason_of

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its errors are raised
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime raises errors of many kinds
        return None

    def run(*args: torch.Tensor) -> Any:
        inputs = {i.name: to_numpy(a) for i, a in zip(module.inputs, args, strict=True)}
        try:
            results = tuple(to_torch(np.asarray(r)) for r in session.run(module.outputs, inputs))
        except Exception as error:
            raise OnnxError(f"onnxruntime does not run the model: {reason_of(error)}", location=file) from None
        return results[0] if len(results) == 1 else results

    return run
