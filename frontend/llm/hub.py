"""Where a model is: in a folder, in the cache of the hub, or on the hub; before anything waits for a network."""

from __future__ import annotations

import os
import re
import socket
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from ...errors import CompileError

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
