"""Targets of the compiler: GPU architectures and CPUs, as records of numbers and features.

- `model.py`: the numbers of a target, each with its unit, and quantities computed from them.
- `architectures.py`: the table of architectures, one record for each.
- `attribute.py`: the names of targets, and the target in the IR, where passes read it.
- `host.py`: the local machine, for the driver alone.

The package imports no other module of the library except `errors`. Dialects, passes and printers import it, except
`host.py`.
"""
