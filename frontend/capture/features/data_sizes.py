"""Sizes that depend on data: decomposition of the operators that have such a size into operators that read it.

After `x[mask]` and similar operators are decomposed, only `Tensor.item` reads data, which the importer supports.
"""

from __future__ import annotations

from torch.export import ExportedProgram

from ..decompositions import table
from ..decompositions.data_sizes import DATA_SIZES
from ..decompositions.operators import by_operator
from . import Features


def expanded(program: ExportedProgram, features: Features) -> ExportedProgram:
    """Returns the program in which only `Tensor.item` reads a size from data."""
    more = by_operator(DATA_SIZES)
    if all(node.target not in more for node in program.graph.nodes):
        return program
    return table.decomposed(program, features.split, False, more)
