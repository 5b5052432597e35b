"""Limits for the process of an answer: time, memory, files, and changes outside of its folder.

Two parts keep an answer from changing files outside of its folder:

- Landlock, a security module of Linux (`man 7 landlock`), forbids it to the process and to all that it starts. It also
  forbids TCP connections and signals to other processes, if the kernel is recent enough.
- An audit hook of Python refuses the calls with a message that names them. It is the only protection where the kernel
  has no Landlock.

A process that is confined cannot lift the limits again.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls of Landlock, equal on all architectures."""

_NO_NEW_PRIVILEGES = 38
_PATH_BENEATH = 1

_CHANGES_BY_VERSION = {
    1: [1, *range(4, 13)],  # Writing, removing and making files, folders, links and devices.
    2: [13],  # Moving files between folders.
    3: [14],  # Truncating files.
    5: [15],  # ioctl on devices.
}
"""Bits of the accesses that change files, by the first version of Landlock that has them."""

_TCP_SINCE, _TCP = 4, 0b11
_SCOPES_SINCE, _SCOPES = 6, 0b11

_WRITABLE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC

_CHANGING = {
    "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.rename": 2, "os.link": 2, "os.symlink": 2, "os.truncate": 1,
    "os.chmod": 1, "os.chown": 1, "os.utime": 1, "shutil.rmtree": 1, "shutil.move": 2, "shutil.copyfile": 2,
}  # fmt: skip
"""Audit events of calls that change files, and the number of their paths."""

_REFUSED = ("socket.connect", "socket.bind")
"""Audit events of calls that an answer may not make at all."""


def confine(folder: Path, seconds: int, memory: int) -> None:
    """Limits this process and the processes that it starts, for good.

    Args:
        folder: the folder that may be changed.
        seconds: processor seconds of each process.
        memory: limit of bytes that are allocated after this call.

    Raises:
        OSError: a limit cannot be set.
    """
    _limit_resources(seconds, memory)
    _restrict_files(folder)
    _refuse_calls(folder.resolve())


def _limit_resources(seconds: int, memory: int) -> None:
    data = _allocated() + memory
    for kind, limit in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_FSIZE, 64 << 20),
        (resource.RLIMIT_CORE, 0),
    ):
        most = resource.getrlimit(kind)[1]
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        # A second above the soft limit, the kernel kills a process that ignores the signal of the soft limit.
        hard = limit + 1 if kind == resource.RLIMIT_CPU and most == resource.RLIM_INFINITY else limit
        resource.setrlimit(kind, (limit, hard))


def _allocated() -> int:
    """Returns the bytes of private writable memory of this process, which RLIMIT_DATA counts."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


def landlock_version() -> int:
    """Returns the version of Landlock of the running kernel, or 0 if it has none."""
    return max(0, ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, 1))


def _restrict_files(folder: Path) -> None:
    """Lets this process change only files in `folder`, by Landlock. Does nothing where the kernel has no Landlock."""
    if not (version := landlock_version()):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    changes = sum(1 << bit for since, bits in _CHANGES_BY_VERSION.items() if version >= since for bit in bits)
    rules = _Ruleset(changes, _TCP * (version >= _TCP_SINCE), _SCOPES * (version >= _SCOPES_SINCE))
    size = 24 if version >= _SCOPES_SINCE else 16 if version >= _TCP_SINCE else 8
    ruleset = _checked(libc.syscall(_CREATE_RULESET, ctypes.byref(rules), size, 0))
    for path, allowed in ((folder, changes), (Path(os.devnull), changes & (1 << 1 | 1 << 14 | 1 << 15))):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        beneath = _PathBeneath(allowed, descriptor)
        _checked(libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(beneath), 0))
        os.close(descriptor)
    _checked(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _checked(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _refuse_calls(folder: Path) -> None:
    """Makes Python calls that change files outside of `folder` raise PermissionError."""

    def outside(path: Any) -> bool:
        if isinstance(path, int) or not path:
            return False
        resolved = Path(os.path.realpath(os.fsdecode(path)))
        return not resolved.is_relative_to(folder) and str(resolved) != os.devnull

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & _WRITABLE_FLAGS and outside(path):
                raise PermissionError(f"an answer may only write files in its own folder, not {os.fsdecode(path)}")
        elif (count := _CHANGING.get(event)) is not None:
            for path in args[:count]:
                if outside(path):
                    raise PermissionError(
                        f"an answer may only change files in its own folder: {event} on {os.fsdecode(path)} is refused"
                    )
        elif event in _REFUSED:
            raise PermissionError(f"an answer may not call {event}")

    sys.addaudithook(hook)
