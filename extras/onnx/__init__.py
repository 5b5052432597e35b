"""ONNX models as PyTorch modules: `deplodock.from_onnx`, and `deplodock compile | run | tune MODEL.onnx`.

`model.py` makes a module that calls a rule for each node of the graph; `rules/` has the rules, functions of PyTorch
tensors. Capture traces the module as any other, so nothing else in the library knows ONNX.
"""
