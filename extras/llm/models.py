"""Language models from transformers: by name on the hub, from a folder, or from a configuration alone.

To compile a model its structure is enough, so parameters are left on the meta device: a 7B model takes no memory and
no download but its configuration. Buffers are real, because what is in them (the frequencies of rotary embeddings) is
computed by the constructor and stored nowhere else. Code from a repository is never executed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import torch
from torch import nn

from ...errors import CaptureError, CompileError
from ...frontend.capture.arrays import dtype_name, dtype_named
from ...frontend.capture.captured_program import CapturedProgram
from ...frontend.capture.export import capture, without_logs
from ..artifact.safetensors import Checkpoint, shards
from .kv_cache import contents, make_cache

DEFAULT_CONTEXT = 2048
"""Tokens that a cache holds, if nothing else is said; never more than the model was made for."""


DEFAULT_PREFILL = 64
"""Tokens of a prompt that are read in one step, if nothing else is said."""

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""What names on the hub look like."""

_PATIENCE = 3.0
"""Seconds in which the hub has to answer."""


class ModelError(CompileError):
    """A model that cannot be found, read, or built."""


def found_at(name: str) -> dict[str, bool]:
    """The arguments with which transformers finds a model: what is in the cache is not looked for on a network that is
    not there. Raises ModelError at once for a name of nothing that can be reached."""
    if Path(name).exists():
        return {"local_files_only": True}
    if NAME.fullmatch(name) is None:
        raise ModelError("there is no such folder or file, and models on the hub are called owner/name", operator=name)
    if hub_answers():
        return {}
    if not _is_cached(name):
        raise ModelError("is no folder here and not in the cache, and the hub cannot be reached", operator=name)
    return {"local_files_only": True}


@cache
def hub_answers() -> bool:
    """Whether the hub can be reached. A proxy is trusted to do so."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(n) for n in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    place = urlsplit(constants.ENDPOINT)
    try:
        port = place.port or (80 if place.scheme == "http" else 443)
        socket.create_connection((place.hostname or "", port), _PATIENCE).close()
    except OSError:
        return False
    return True


def _is_cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def load_config(name: str) -> Any:
    """The configuration of a model: `name` is one on the hub, a folder with a `config.json`, or a `.json` file.

    Raises ModelError.
    """
    import transformers

    path = Path(name)
    with building(name, "no model configuration there: "):
        if not path.is_file():
            where = path if path.exists() else name
            return transformers.AutoConfig.from_pretrained(where, trust_remote_code=False, **found_at(name))
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict) or "model_type" not in fields:
            raise ValueError("the file is no model configuration: it has no model_type")
        return transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)


@contextmanager
def building(name: str, what: str = "") -> Iterator[None]:
    """What transformers says against a model becomes a ModelError."""
    try:
        with quiet():
            yield
    except (OSError, ValueError, ImportError, KeyError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{what}{lines[0][:200]}", operator=name) from error


def build_model(config: Any, dtype: torch.dtype | None = None, seed: int | None = None) -> nn.Module:
    """The causal language model of a configuration, in evaluation mode, with parameters on the meta device, or with
    random ones for a `seed`: to try things out.

    `dtype` is that of the parameters, by default the configuration's own. Raises ModelError.
    """
    import transformers

    if seed is not None:
        torch.manual_seed(seed)
    with building(config.model_type), parameters_on_meta() if seed is None else nullcontext():
        model = transformers.AutoModelForCausalLM.from_config(
            _prepared(config), dtype=dtype or config_dtype(config), trust_remote_code=False
        )
    model.tie_weights()
    return model.eval()


def load_model(name: str, dtype: torch.dtype | None = None) -> nn.Module:
    """A causal language model with its weights, from the hub or a folder; safetensors only. Raises ModelError."""
    import transformers

    config = _prepared(load_config(name))
    how = {"config": config, "dtype": dtype or config_dtype(config), "use_safetensors": True, **found_at(name)}
    with building(name):
        return transformers.AutoModelForCausalLM.from_pretrained(name, trust_remote_code=False, **how).eval()


def stored_as_used(config: Any) -> bool:
    """Whether checkpoints of this kind of model have the tensors as the model uses them; of some, transformers makes
    them from what is stored, such as one tensor from those of all experts."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    return get_checkpoint_conversion_mapping(config.model_type) is None


def open_checkpoint(name: str) -> Checkpoint:
    """The safetensors of a folder, or of a model on the hub. Nothing is read yet. Raises ModelError, WeightError."""
    from transformers.utils.hub import cached_file

    if Path(name).exists():
        return Checkpoint(name)
    with building(name):
        where = found_at(name)
        index = cached_file(name, "model.safetensors.index.json", _raise_exceptions_for_missing_entries=False, **where)
        if index is None:
            return Checkpoint(Path(str(cached_file(name, "model.safetensors", **where))))
        for part in shards(Path(index)):
            cached_file(name, part, **where)
        return Checkpoint(Path(index).parent)


def config_dtype(config: Any) -> torch.dtype:
    """The data type that a configuration asks for; float32 if it does not say."""
    found = getattr(config, "dtype", None)
    if isinstance(found, str):
        found = getattr(torch, found, None)
    return found if isinstance(found, torch.dtype) else torch.float32


def _prepared(config: Any) -> Any:
    """`config` with the choice, of what transformers offers, of code that is free of decisions on data: experts as
    batched products."""
    if hasattr(config, "num_experts") or hasattr(config, "num_local_experts"):
        config._experts_implementation = "batched_mm"
    return config


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """While it is open, modules that are built get their parameters on the meta device, and real buffers."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None:
            own = module._parameters
            own[name] = nn.Parameter(parameter.data.to("meta"), requires_grad=parameter.requires_grad)

    with patch.object(nn.Module, "register_parameter", on_meta):
        yield


def quiet() -> AbstractContextManager[None]:
    """Without the messages that transformers logs for people who train."""
    return without_logs(logging.WARNING)


class Step(nn.Module):
    """One step of a language model with a cache: tokens, their position and the caches in, logits and caches out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: torch.Tensor,
        start: torch.Tensor,
        last: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """`tokens` (1, S) begin at position `start` (1,); the logits (1, V) are those after token `last` (1,) of them.

        `keys` and `values` are the caches of the layers; they come back with the new tokens in them. Tokens behind
        `last` may be anything: what they leave in the caches is overwritten before it is looked at.
        """
        positions = start + torch.arange(tokens.shape[1], device=start.device)
        cache = make_cache(keys, values, positions)
        out = self.model(
            input_ids=tokens,
            position_ids=positions.unsqueeze(0),
            past_key_values=cache,
            logits_to_keep=last,
            use_cache=True,
        )
        return out.logits[:, 0], *contents(cache)


@dataclass(frozen=True)
class CacheShape:
    """The caches of a model: one shape for each layer, (1, heads, context, size), for keys and for values."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @property
    def context(self) -> int:
        """How many tokens fit."""
        return self.shapes[0][2]

    def make(self, device: str = "cpu") -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Empty caches: keys and values."""

        def zeros() -> list[torch.Tensor]:
            return [torch.zeros(s, dtype=self.dtype, device=device) for s in self.shapes]

        return zeros(), zeros()


def cache_shape(config: Any, dtype: torch.dtype, context: int | None = None) -> CacheShape:
    """The caches that a model needs for `context` tokens."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None) or DEFAULT_CONTEXT
    context = min(context or DEFAULT_CONTEXT, longest)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return CacheShape(((1, heads, context, size),) * text.num_hidden_layers, dtype)


@dataclass(frozen=True)
class ModelPlan:
    """How a model is compiled: its caches, the tokens of a prefill step, and the size of its vocabulary."""

    caches: CacheShape
    length: int
    vocabulary: int

    def written(self) -> dict[str, object]:
        """The plan as JSON, for `read`."""
        shapes = [list(s) for s in self.caches.shapes]
        dtype = dtype_name(self.caches.dtype)
        return {"shapes": shapes, "dtype": dtype, "length": self.length, "vocabulary": self.vocabulary}

    @staticmethod
    def read(value: Any) -> ModelPlan | None:
        """The plan that was written, None for something else."""
        try:
            shapes = tuple(tuple(int(n) for n in shape) for shape in value["shapes"])
            caches = CacheShape(shapes, dtype_named(value["dtype"]))
            return ModelPlan(caches, int(value["length"]), int(value["vocabulary"]))
        except (KeyError, TypeError, ValueError, CompileError):
            return None


def plan_model(model: nn.Module, context: int | None = None, prefill: int = DEFAULT_PREFILL) -> ModelPlan:
    """How to compile `model` for `context` tokens in all, and `prefill` tokens of a prompt at a time."""
    config: Any = model.config
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), config_dtype(config))
    caches = cache_shape(config, dtype, context)
    return ModelPlan(caches, min(prefill, caches.context), int(config.get_text_config().vocab_size))


def capture_step(model: nn.Module, caches: CacheShape, length: int) -> CapturedProgram:
    """Capture one step of `model` for `length` tokens at a time: 1 to decode, more to read a prompt.

    Raises CompileError.
    """
    if not 0 < length <= caches.context:
        raise CaptureError(f"a step of {length} tokens does not fit a cache of {caches.context}")
    device = next(model.parameters()).device.type
    keys, values = caches.make(device)
    tokens = torch.zeros((1, length), dtype=torch.int64, device=device)
    start, last = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
    with quiet():
        captured = capture(Step(model), (tokens, start, last, keys, values))
    return captured.updating(cache_updates(captured, len(keys) + len(values)))


def cache_updates(captured: CapturedProgram, caches: int) -> list[tuple[int, int]]:
    """Which results of a `Step` replace which arguments: each cache that comes out the one that went in.

    The caches are the last leaves of its arguments and of its results, in the same order.
    """
    arguments = {b.leaf: i for i, b in enumerate(captured.bindings) if b.kind == "input"}
    first = captured.in_spec.num_leaves - caches
    pairs = zip(captured.outputs[-caches:], range(first, first + caches), strict=True)
    return [(o.index, arguments[leaf]) for o, leaf in pairs if o.kind == "result"]
