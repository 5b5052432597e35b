"""Compilation of printed C++ to shared objects, with a cache in the user's cache folder.

A large program is divided into parts, which are compiled in parallel.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...progress import steps
from ...target.host import cores
from ..cpp.writer import HOST_MARK, KERNELS_MARK
from ..host.build_cache import cached_file, digest
from ..host.compiler import compiler_identity, run_compiler

KERNELS = 6
"""Smallest number of kernels in a part. Each part compiles the helpers again, so small parts do not pay off."""

FLAGS = (
    *("-std=c++17", "-O3", "-fopenmp", "-fPIC", "-shared", "-w", "-fno-exceptions", "-fno-rtti"),
    # Integers wrap around. errno and floating-point exceptions are not read. Only explicit calls fuse multiply and add,
    # so that results do not depend on the compiler.
    *("-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fno-strict-aliasing"),
)


def build(text: str, march: str = "native") -> Path:
    """Compiles a printed program, or returns the cached shared object.

    Args:
        text: the program.
        march: processor: the value of the option `-march` of g++.

    Raises:
        ExecutionError: if there is no compiler, or the text does not compile.
    """
    name = digest(text, compiler_identity(march), *options(march)) + ".so"
    return cached_file("cpu", name, lambda target: build_at(target, text, march))


def build_at(target: Path, text: str, march: str = "native") -> None:
    """Compiles a printed program without the cache.

    Args:
        target: path of the shared object.
        text: the program.
        march: processor: the value of the option `-march` of g++.

    Raises:
        ExecutionError: as `build`.
    """
    flags = options(march)

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
    """
    helpers, mark, body = text.partition(KERNELS_MARK)
    kernels, host_mark, host = body.partition(HOST_MARK)
    functions = [f"{kernel}\n}}\n" for kernel in kernels.split("\n}\n\n") if kernel]
    count = min(most, len(functions) // KERNELS)
    if count < 2:
        return [text]
    texts = [helpers + mark + "\n".join(functions[i::count]) for i in range(count)]
    return [*texts[1:], texts[0] + host_mark + host]
