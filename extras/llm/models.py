"""Construction of language models with the package transformers, from the hub, a folder or a configuration file.

A model can be compiled without its weights: its parameters are on PyTorch's meta device, so that a 7B model needs no
memory, and no download except its configuration. Buffers are real, because their constructor computes their contents,
such as the frequencies of rotary embeddings. Code from a repository is never executed.
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
"""Default number of tokens that the caches hold, limited by the model's maximum."""


DEFAULT_PREFILL = 64
"""Default number of tokens of a prefill step."""

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""Regular expression of names on the hub: owner/name."""

_CONNECT_TIMEOUT_SECONDS = 3.0
"""Timeout of the connection to the hub, in seconds."""


class ModelError(CompileError):
    """Error of a model that cannot be found, read or built."""


def source_options(name: str) -> dict[str, bool]:
    """Returns the arguments with which functions of transformers find a model.

    They restrict the search to local files for a path, or if the hub cannot be reached. Raises ModelError if the model
    is neither local nor reachable.
    """
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
    """Returns true if the hub can be reached. Behind a proxy it is assumed to be reachable."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(n) for n in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    endpoint = urlsplit(constants.ENDPOINT)
    try:
        port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
        socket.create_connection((endpoint.hostname or "", port), _CONNECT_TIMEOUT_SECONDS).close()
    except OSError:
        return False
    return True


def load_config(name: str) -> Any:
    """Returns the configuration of a model: a name on the hub, a folder with a `config.json`, or a `.json` file.

    Raises ModelError if there is no configuration.
    """
    import transformers

    path = Path(name)
    with building(name, "no model configuration there: "):
        if not path.is_file():
            location = path if path.exists() else name
            return transformers.AutoConfig.from_pretrained(location, trust_remote_code=False, **source_options(name))
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict) or "model_type" not in fields:
            raise ValueError("the file is no model configuration: it has no model_type")
        return transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)


@contextmanager
def building(name: str, reason: str = "") -> Iterator[None]:
    """Converts exceptions of transformers in the `with` block to ModelErrors about the model `name`.

    `reason` is the beginning of their messages.
    """
    try:
        with quiet():
            yield
    except (OSError, ValueError, ImportError, KeyError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{reason}{lines[0][:200]}", operator=name) from error


def build_model(config: Any, dtype: torch.dtype | None = None, seed: int | None = None) -> nn.Module:
    """Returns the causal language model of a configuration, in evaluation mode.

    Args:
        config: the configuration.
        dtype: type of the parameters; default: as in the configuration.
        seed: seed of random parameters. Without it, parameters are on the meta device.

    Raises:
        ModelError: if transformers cannot build the model.
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
    """Returns a causal language model with its weights, from safetensors on the hub or in a folder.

    Raises ModelError if it cannot be loaded.
    """
    import transformers

    config = _prepared(load_config(name))
    options = {
        "config": config,
        "dtype": dtype or config_dtype(config),
        "use_safetensors": True,
        **source_options(name),
    }
    with building(name):
        return transformers.AutoModelForCausalLM.from_pretrained(name, trust_remote_code=False, **options).eval()


def stored_as_used(config: Any) -> bool:
    """Returns true if checkpoints of a model store its parameters unchanged.

    For some models transformers converts the stored tensors, for example concatenates the weights of all experts.
    """
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    return get_checkpoint_conversion_mapping(config.model_type) is None


def open_checkpoint(name: str) -> Checkpoint:
    """Returns the checkpoint of a folder, or of a model on the hub, whose files are downloaded.

    Raises ModelError if there is no model, and WeightError if there are no weights.
    """
    from transformers.utils.hub import cached_file

    if Path(name).exists():
        return Checkpoint(name)
    with building(name):
        options = source_options(name)
        index = cached_file(
            name, "model.safetensors.index.json", _raise_exceptions_for_missing_entries=False, **options
        )
        if index is None:
            return Checkpoint(Path(str(cached_file(name, "model.safetensors", **options))))
        for part in shards(Path(index)):
            cached_file(name, part, **options)
        return Checkpoint(Path(index).parent)


def config_dtype(config: Any) -> torch.dtype:
    """Returns the data type of a configuration, or float32 if it has none."""
    config_type = getattr(config, "dtype", None)
    if isinstance(config_type, str):
        config_type = getattr(torch, config_type, None)
    return config_type if isinstance(config_type, torch.dtype) else torch.float32


def _prepared(config: Any) -> Any:
    """Returns `config`, changed in place so that experts are batched matmuls.

    The other implementations of transformers have control flow that depends on data, which cannot be captured.
    """
    if hasattr(config, "num_experts") or hasattr(config, "num_local_experts"):
        config._experts_implementation = "batched_mm"
    return config


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Moves the parameters of modules built in the `with` block to the meta device. Their buffers stay real."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None:
            parameters = module._parameters
            parameters[name] = nn.Parameter(parameter.data.to("meta"), requires_grad=parameter.requires_grad)

    with patch.object(nn.Module, "register_parameter", on_meta):
        yield


def quiet() -> AbstractContextManager[None]:
    """Suppresses log messages of transformers below errors, such as hints about training."""
    return without_logs(logging.WARNING)


GROUP = 128
"""Number of elements of a row that share a scale.

If it does not divide the row length, the greatest common divisor of both is used instead.
"""


class Int8Linear(nn.Module):
    """Linear layer with quantized weights: int8 of shape (N, K), and scales of shape (N, K / group).

    Args:
        linear: layer to replace. The scales have the type of its weight.
    """

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
        """Returns x · weightᵀ + bias for `x` of shape (..., K), in the type of `x`."""
        weight, scale = self.get_buffer("weight"), self.get_buffer("scale")
        rows = weight.float().unflatten(1, (scale.shape[1], -1)) * scale.float().unsqueeze(-1)
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), rows.flatten(1), bias).to(x.dtype)


def to_int8(model: nn.Module) -> nn.Module:
    """Replaces the linear layers of `model` in place by `Int8Linear`, and returns it. Other modules do not change."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model.set_submodule(name, Int8Linear(module))
    return model
