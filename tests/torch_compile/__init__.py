"""Uses of `torch.compile(..., backend="deplodock")`, each compared with eager PyTorch."""

from . import inference, training  # they fill the table
from .checking import USES

__all__ = ["USES", "inference", "training"]
