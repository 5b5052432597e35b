"""Schemas of the operators that decompositions in this folder call.

The torch dialect reads them when it is imported, so this file imports nothing.
"""

OPERATORS = "deplodock.greedy_selection(Tensor conflicts) -> Tensor"
