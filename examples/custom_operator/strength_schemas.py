"""The operators that are added, as the torch dialect has them. Nothing is imported here: the dialect reads it first."""

OPERATORS = "strength.twice(Tensor self) -> Tensor"
