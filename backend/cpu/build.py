"""Compile printed C++ for this machine, once: shared objects are kept in a folder of the user's own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...progress import steps
from ...target.host import cores
from ..cpp.writer import HOST_MARK, KERNELS_MARK
from ..host.build_cache import cached_file, digest
from ..host.compiler import known, run_compiler

KERNELS = 6
"""Kernels of a part at least: each part has the helpers to read."""

FLAGS = (
    *("-std=c++17", "-O3", "-fopenmp", "-fPIC", "-shared", "-w", "-fno-exceptions", "-fno-rtti"),
    # Integers wrap; nobody looks at errno or at floating-point exceptions; only what is written fused is.
    *("-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fno-strict-aliasing"),
)


def build(text: str, march: str = "native") -> Path:
    """Returns the shared object of a printed program for processors that `march` names as g++ does. Raises
    ExecutionError if there is no compiler, or if the text does not compile."""
    name = digest(text, known(march), *options(march)) + ".so"
    return cached_file("cpu", name, lambda target: build_at(target, text, march))


def build_at(target: Path, text: str, march: str = "native") -> None:
    """Builds the shared object of a printed program outside the cache. Raises ExecutionError."""
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
    """Returns the compiler's options. Tuned for a processor of Intel, g++ makes no vectors of 512 bits unless told to:
    it takes those of the text apart, element by element."""
    wide = ("-mprefer-vector-width=512",) if "__AVX512F__" in known(march) else ()
    return (*FLAGS, f"-march={march}", *wide)


def parts(text: str, most: int) -> list[str]:
    """Splits a program into at most `most` texts that are compiled at the same time: the helpers and at least `KERNELS`
    kernels each."""
    helpers, mark, rest = text.partition(KERNELS_MARK)
    kernels, host_mark, host = rest.partition(HOST_MARK)
    each = [f"{kernel}\n}}\n" for kernel in kernels.split("\n}\n\n") if kernel]
    count = min(most, len(each) // KERNELS)
    if count < 2:
        return [text]
    texts = [helpers + mark + "\n".join(each[i::count]) for i in range(count)]
    return [*texts[1:], texts[0] + host_mark + host]
