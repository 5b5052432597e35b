"""The key-value cache of a compiled model: tensors of a fixed length that go in, and come out with new tokens in them.

The position is a tensor as well, so one captured program serves every position. Nothing is changed in place: what comes
out of one step goes into the next, and the graph that PyTorch exports is functional as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class FixedCacheLayer(CacheLayerMixin):
    """Keys and values (batch, heads, length, size) of one layer; new ones are written at `positions`.

    `positions` are the places of the new tokens, int64, one after another. A window of attention is left to the mask:
    the cache is as long as the longest sequence.
    """

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor) -> None:
        super().__init__()
        self.keys: torch.Tensor
        self.values: torch.Tensor
        self.keys, self.values, self.positions = keys, values, positions
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the tensors are given."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The cache with the new keys and values, which it is from now on; the mask hides what is not there yet."""
        self.keys = _written(self.keys, key_states, self.positions[0])
        self.values = _written(self.values, value_states, self.positions[0])
        return self.keys, self.values

    def get_seq_length(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """How many tokens came before, as a tensor, so that it is no constant of the program."""
        return self.positions[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and first position of what the queries may look at."""
        return self.keys.shape[2], 0

    def get_max_length(self) -> int:
        """How many tokens fit."""
        return self.keys.shape[2]


def contents(cache: Cache) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The keys and the values of all layers, as they are now."""
    layers = [layer for layer in cache.layers if isinstance(layer, FixedCacheLayer)]
    return [layer.keys for layer in layers], [layer.values for layer in layers]


def _written(cache: torch.Tensor, new: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """`cache` with `new` from position `start` on.

    Every place of the cache asks which new token belongs there, if any: a kernel that reads, where a scatter would have
    to search.
    """
    count = new.shape[2]
    offset = torch.arange(cache.shape[2], device=cache.device) - start
    inside = (offset >= 0) & (offset < count)
    placed = new if count == 1 else new.index_select(2, offset.clamp(0, count - 1))
    return torch.where(inside[:, None], placed, cache)


def make_cache(keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], positions: torch.Tensor) -> Cache:
    """The cache of a whole model from the tensors of its layers."""
    return Cache(layers=[FixedCacheLayer(k, v, positions) for k, v in zip(keys, values, strict=True)])
