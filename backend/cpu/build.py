"""Compilation of printed C++ to shared objects, with a cache in the user's cache folder.

A large program is divided into parts, which are compiled in parallel.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...progress import steps
from ...target.host import cores
from ..cpp.writer import HOST_MARK, KERNELS_MARK
from ..host.build_cache import cache_folder, cached_file, digest
from ..host.compiler import compiler_identity, run_compiler

KERNELS = 6
"""Smallest number of kernels in a part. Each part compiles the helpers again, so small parts do not pay off."""

END_OF_KERNEL = "\n}\n\n"

_HEAD = re.compile(r"static void (k\d+)\(")

FLAGS = (
    *("-std=c++17", "-O3", "-fopenmp", "-fPIC", "-shared", "-w", "-fno-exceptions", "-fno-rtti"),
    # Integers wrap around. errno and floating-point exceptions are not read. Only explicit calls fuse multiply and add,
    # so that results do not depend on the compiler.
    *("-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fno-strict-aliasing"),
)


LINES = ("-g1",)
"""Additional option for machine code with lines. It does not change the instructions."""


def build(text: str, march: str = "native", lines: bool = False) -> Path:
    """Compiles a printed program, or returns the cached shared object.

    Args:
        text: the program.
        march: processor: the value of the option `-march` of g++.
        lines: whether the machine code has the lines of the text (`disassembly.disassemble`).

    Raises:
        ExecutionError: if there is no compiler, or the text does not compile.
    """
    extra = LINES if lines else ()
    return cached_file("cpu", _file_name(text, march, extra), lambda target: build_at(target, text, march, extra))


def is_built(text: str, march: str = "native") -> bool:
    """Returns true if the cache has the shared object of a printed program. The arguments are as for `build`."""
    return (cache_folder("cpu") / _file_name(text, march, ())).exists()


def _file_name(text: str, march: str, extra: tuple[str, ...]) -> str:
    return digest(text, compiler_identity(march), *options(march), *extra) + ".so"


def build_at(target: Path, text: str, march: str = "native", extra: tuple[str, ...] = ()) -> None:
    """Compiles a printed program without the cache.

    Args:
        target: path of the shared object.
        text: the program.
        march: processor: the value of the option `-march` of g++.
        extra: additional options of the compiler.

    Raises:
        ExecutionError: as `build`.
    """
    flags = (*options(march), *extra)

    def compiled(part: tuple[int, str]) -> str:
        source = target.parent / f"{target.stem}-part{part[0]}.cpp"
        source.write_text(part[1])
        run_compiler(*flags, "-c", "-o", f"{source}.o", str(source))
        return f"{source}.o"

    texts = parts(text, cores())
    with steps("compiling C++", len(texts), "parts") as step, ThreadPoolExecutor() as threads:
        objects: list[str] = []
        for name in threads.map(compiled, enumerate(texts)):
            objects.append(name)
            step()
    run_compiler(*flags, "-Wl,-Bsymbolic", "-o", str(target), *objects, "-lm")


def options(march: str) -> tuple[str, ...]:
    """Returns the options of the compiler for a processor, a value of `-march`.

    With the tuning of Intel processors g++ prefers vectors of 256 bits, and splits vectors of 512 bits element by
    element. The option `-mprefer-vector-width=512` prevents this.
    """
    wide = ("-mprefer-vector-width=512",) if "__AVX512F__" in compiler_identity(march) else ()
    return (*FLAGS, f"-march={march}", *wide)


def parts(text: str, most: int) -> list[str]:
    """Splits a program into at most `most` texts, to compile them in parallel.

    Every text has the helpers and at least `KERNELS` kernels. One has the host program. A small program is not split.
    Blank lines replace kernels of other texts, so that every kernel keeps its lines.
    """
    helpers, mark, body = text.partition(KERNELS_MARK)
    kernels, host_mark, host = body.partition(HOST_MARK)
    functions = [f"{kernel}{END_OF_KERNEL}" for kernel in kernels.split(END_OF_KERNEL) if kernel]
    count = min(most, len(functions) // KERNELS)
    if count < 2:
        return [text]

    def part(number: int) -> str:
        functions_of_part = (f if i % count == number else "\n" * f.count("\n") for i, f in enumerate(functions))
        return helpers + mark + "".join(functions_of_part)

    texts = [part(number) for number in range(count)]
    return [*texts[1:], texts[0] + host_mark + host]


def kernel_lines(text: str) -> dict[str, range]:
    """Returns the lines of each kernel of a printed program, by name."""
    lines = text.splitlines()
    starts = {m[1]: n for n, line in enumerate(lines, 1) if (m := _HEAD.match(line))}
    ends = [n for n, line in enumerate(lines, 1) if line == "}"]
    return {name: range(start, ends[bisect_left(ends, start)] + 1) for name, start in starts.items()}
