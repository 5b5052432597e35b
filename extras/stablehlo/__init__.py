"""JAX programs as programs of the tensor dialect: `deplodock.from_jax`, and `deplodock compile | run | tune FILE`.

`importer.py` walks a StableHLO module with the MLIR bindings of jaxlib, and calls a rule for each operation; `rules/`
has the rules. The result is a module of the tensor dialect, so nothing else in the library knows JAX.
"""
