"""Schemas of the package's operators. The torch dialect reads them on import, so this file imports nothing."""

OPERATORS = "strength.twice(Tensor self) -> Tensor"
