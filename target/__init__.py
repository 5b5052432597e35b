"""Targets: what a program is compiled for, as data.

- `model.py`: the numbers of a target, each with its unit, and what follows from them.
- `architectures.py`: the table of architectures, one record for each.
- `attribute.py`: the names of targets, and the target in the IR, where passes read it.
- `host.py`: the local machine, for the driver alone.

The package imports nothing of the library but `errors`. Dialects, passes and printers import it, except for `host.py`.
"""
