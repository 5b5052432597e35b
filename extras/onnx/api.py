"""`deplodock.from_onnx`."""

from __future__ import annotations

from os import PathLike, fspath

from onnx import ModelProto

from .files import check, prepared, read_model
from .model import OnnxModule
from .values import OnnxError, reason_of


def from_onnx(model: str | PathLike[str] | ModelProto) -> OnnxModule:
    """Returns the PyTorch module of an ONNX model.

    ```
    module = deplodock.from_onnx("model.onnx")
    f = deplodock.compile(module, module.example_inputs(), dynamic_shapes=module.dynamic_shapes())
    ```

    Args:
        model: a file, whose external data is read from its folder, or a model.

    Raises:
        OnnxError: if the model cannot be read, or is of an operator set that is not supported. An operator that is not
            supported is refused when the module is traced or called.
    """
    if not isinstance(model, ModelProto):
        return OnnxModule(read_model(model), fspath(model))
    try:
        check(model)
    except OnnxError:
        raise
    except Exception as error:  # onnx raises errors of many kinds
        raise OnnxError(f"is no valid ONNX model: {reason_of(error)}") from None
    return OnnxModule(prepared(model, "model.onnx"))
