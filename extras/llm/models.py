"""Language models from transformers: by name on the hub, from a folder, or from a configuration alone.

To compile a model its structure is enough, so parameters are left on the meta device: a 7B model takes no memory and
no download but its configuration. Buffers are real, because what is in them (the frequencies of rotary embeddings) is
computed by the constructor and stored nowhere else. Code from a repository is never executed.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import torch
import torch.nn.functional as F
from torch import nn

from ...errors import CompileError
from ...frontend.capture.tracing import without_logs
from ..artifact.safetensors import Checkpoint, shards

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
    from huggingface_hub import try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(name, "config.json"), str):
        raise ModelError("is no folder here and not in the cache, and the hub cannot be reached", operator=name)
    return {"local_files_only": True}


@cache
def hub_answers() -> bool:
    """Returns whether the hub can be reached. A proxy is trusted to do so."""
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


GROUP = 128
"""Elements of a row that share a scale, or a divisor of that."""


class Int8Linear(nn.Module):
    """A linear layer whose weight (N, K) is int8, with scales (N, K / group) in the type of what it replaces."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        group = math.gcd(weight.shape[1], GROUP)
        rows = weight.float().unflatten(1, (-1, group))
        scale = rows.abs().amax(-1, keepdim=True) / 127
        self.register_buffer("weight", (rows / scale.clamp_min(1e-30)).round().to(torch.int8).flatten(1))
        self.register_buffer("scale", scale.squeeze(-1).to(weight.dtype))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` (..., K) times the weight, in the type of `x`, plus the bias."""
        weight, scale = self.get_buffer("weight"), self.get_buffer("scale")
        rows = weight.float().unflatten(1, (scale.shape[1], -1)) * scale.float().unsqueeze(-1)
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), rows.flatten(1), bias).to(x.dtype)


def to_int8(model: nn.Module) -> nn.Module:
    """`model`, changed in place: its linear layers as `Int8Linear`. Embeddings, norms and biases stay."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model.set_submodule(name, Int8Linear(module))
    return model
