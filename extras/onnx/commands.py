"""`deplodock compile | run | tune MODEL.onnx`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
        expected = _runtime(module, file, args)
        names = tuple(i.name for i in module.inputs)
        options = {} if expected is None else {"expected": expected, "peer": "onnxruntime"}
        return Program(module, args, names=names, place=(file, 1), dynamic_shapes=module.dynamic_shapes(), **options)


def _runtime(module: OnnxModule, file: str, args: tuple[torch.Tensor, ...]):
    """Returns a function that computes the results by onnxruntime, or None without it."""
    try:
        import onnxruntime
    except ImportError:
        return None
    import numpy as np

    from ...frontend.capture.arrays import to_numpy, to_torch

    def expected() -> list[torch.Tensor]:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        inputs = {i.name: to_numpy(a) for i, a in zip(module.inputs, args, strict=True)}
        return [to_torch(np.asarray(r)) for r in session.run(module.outputs, inputs)]

    return expected
