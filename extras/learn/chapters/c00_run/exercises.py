"""Exercises of chapter 0: the bytes and operations of programs, and their limits."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.utils.hints import isa

from .....dialects.loop import NestOp
from .....dialects.loop.work import Work, nest_work, operand_bytes
from .....dialects.payload import element_bytes
from .....dialects.support.calls import main_function
from ...answers import Answer
from ...course import Chapter, Exercise
from ...judges import PASSES, lowered, parsed
from ...numbers import require_number
from ...verdicts import Wrong
from . import programs

ELEMENTS = "this is the number of elements; each has 4 bytes"


def _nests(text: str) -> list[NestOp]:
    """Returns the loop nests, one for each kernel, of a program at the torch level."""
    return [op for op in lowered(parsed(text), "torch-to-tensor,tensor-to-loop").walk() if isinstance(op, NestOp)]


def _work(text: str) -> Work:
    """Returns the work of all kernels of a program, as `deplodock run -v` counts it."""
    return sum(map(nest_work, _nests(text)), Work(0, 0, 0))


def _whole(answer: Answer, names: dict[str, Any], name: str, least: int, most: int) -> int:
    value = answer.value(names, name)
    if not isinstance(value, int) or not least <= value <= most:
        raise Wrong(f"{name}: expected a whole number from {least} to {most}, but got {value!r}")
    return value


def judge_rms_norm(answer: Answer) -> str:
    names = answer.namespace()
    rows, columns = _whole(answer, names, "ROWS", 2, 64), _whole(answer, names, "COLUMNS", 128, 8192)
    if (rows, columns) == (32, 2048):
        raise Wrong("the page shows the numbers of 32 x 2048: choose other ROWS and COLUMNS")
    (nest,) = _nests(programs.rms_norm(rows, columns))
    work = nest_work(nest)
    weight, x = sorted(operand_bytes(nest).values())
    require_number(
        "BYTES_READ",
        answer.value(names, "BYTES_READ"),
        work.read,
        [
            (x, "this is x alone, but the kernel also reads the weight"),
            (work.read / 4, ELEMENTS),
            (x / 4, f"{ELEMENTS}, and the kernel also reads the weight"),
            (
                2 * x + weight,
                "x is counted twice; a kernel reads x from memory once and keeps the row that it works on",
            ),
            (2 * x, "x is counted twice; a kernel reads x from memory once. The weight is missing"),
            (work.bytes, "it includes the bytes that are written"),
            (x + rows * weight, "the weight is counted for each row; all rows use the same one"),
        ],
    )
    require_number(
        "BYTES_WRITTEN",
        answer.value(names, "BYTES_WRITTEN"),
        work.written,
        [
            (work.written / 4, ELEMENTS),
            (work.bytes, "it includes the bytes that are read"),
            (2 * work.written, "the kernel writes only the result; x * x stays inside of the kernel"),
            (4 * rows, "this is one number for each row; the result has the shape of x"),
        ],
    )
    elements = rows * columns
    per_element = work.flops // elements
    require_number(
        "OPERATIONS",
        answer.value(names, "OPERATIONS"),
        work.flops,
        [
            *(
                (n * elements, f"you count {n} for each element of x, the kernel computes {per_element}; the square, "
                 "each addition of the sum, and each multiplication of the result count as one")
                for n in (1, 2, 3, 5, 6, 7)
            ),
            (per_element, "this is for one element of x"),
            (per_element * columns, "this is for one row"),
        ],
    )  # fmt: skip
    return (
        f"right: {work.read:,} B read, {work.written:,} B written, {work.flops:,} operations, "
        f"which are {work.flops / work.bytes:.2f} operations for each byte. Without the weight, {weight:,} B less are "
        f"read and {elements:,} multiplications are not computed; the bytes written stay"
    )


def _bytes(value: SSAValue) -> int:
    assert isa(value.type, TensorType)
    return element_bytes(value.type) * value.type.element_count()


def _separate_bytes(op: Operation) -> int:
    """Returns the bytes that a kernel for one operator reads and writes."""
    return sum(map(_bytes, {*op.operands} | {*op.results}))


def judge_separate(answer: Answer) -> str:
    names = answer.namespace()
    rows, columns = _whole(answer, names, "ROWS", 2, 1 << 16), _whole(answer, names, "COLUMNS", 128, 1 << 16)
    text = programs.rms_norm(rows, columns)
    operators = [op for op in main_function(parsed(text)).body.block.ops if op.results]
    separate = sum(map(_separate_bytes, operators))
    written = sum(_bytes(v) for op in operators for v in op.results)
    large, fused = 4 * rows * columns, _work(text).bytes
    require_number(
        "BYTES",
        answer.value(names, "BYTES"),
        separate,
        [
            (separate / 4, ELEMENTS),
            (written, "these are the bytes written; each kernel also reads its arguments"),
            (separate - written, "these are the bytes read; each kernel also writes its result"),
            (fused, "these are the bytes of one kernel for the whole RMSNorm"),
            (
                len(operators) * fused,
                f"this is {len(operators)} times the bytes of the one kernel; each of the six has arguments and a "
                "result of its own, and some have one number for each row",
            ),
            *((n * large, f"this is {n} times the size of x; the six kernels read and write tensors of this size "
               f"{separate // large} times") for n in (4, 5, 6, 8, 9, 10, 12)),
        ],
    )  # fmt: skip
    require_number(
        "RATIO",
        answer.value(names, "RATIO"),
        separate / fused,
        [
            (fused / separate, "divide the bytes of six kernels by those of one"),
            (separate / large, "this is the ratio to the size of x; one kernel reads x and the weight and writes the "
             "result"),
            (len(operators), "this is the number of kernels; compare the bytes"),
        ],
    )  # fmt: skip
    return (
        f"right: {len(operators)} kernels move {separate / 1e6:.2f} MB, one moves {fused / 1e6:.2f} MB, "
        f"{separate / fused:.1f} times less. add and rsqrt move only {2 * 4 * rows:,} B each, but each costs a start"
    )


LIMITED = {
    "rms_norm": programs.rms_norm(4096, 8192),
    "softmax": programs.softmax(4096, 8192),
    "linear": programs.matmul(4096, 4096, 4096),
    "one_row": programs.matmul(1, 4096, 4096),
}
"""Name of a program -> its text."""


def judge_limit(answer: Answer) -> str:
    names = answer.namespace()
    speed, rate = (answer.value(names, name) for name in ("BYTES_PER_SECOND", "OPERATIONS_PER_SECOND"))
    if (speed, rate) != (4.8e12, 6.7e13):
        raise Wrong("BYTES_PER_SECOND and OPERATIONS_PER_SECOND describe the machine: leave them as they are")
    limits = answer.value(names, "LIMITS")
    if not isinstance(limits, dict) or {*limits} != {*LIMITED}:
        raise Wrong(f"expected LIMITS to have the keys {', '.join(LIMITED)}")
    for name, text in LIMITED.items():
        _require_limit(f"LIMITS[{name!r}]", limits[name], _work(text), speed, rate)
    smallest = _whole(answer, names, "SMALLEST", 16, 4096)
    if smallest % 16:
        raise Wrong(f"SMALLEST: expected a multiple of 16, but got {smallest}")
    ridge, intensity = rate / speed, _intensity(smallest)
    time = f"the machine computes {ridge:.1f} in the time of a byte"
    if intensity < ridge:
        raise Wrong(
            f"SMALLEST = {smallest} is too small: a matmul of this size has {intensity:.1f} operations for each "
            f"byte, and {time}"
        )
    if smallest > 16 and (smaller := _intensity(smallest - 16)) >= ridge:
        raise Wrong(
            f"SMALLEST = {smallest} is too large: at n = {smallest - 16} there are {smaller:.1f} operations for each "
            f"byte, and {time}"
        )
    return (
        f"right: at n = {smallest} there are {intensity:.1f} operations for each byte, and {time}. one_row is limited "
        "by bytes, almost all of them weights: weights of 2 bytes halve its time, more operations per second do nothing"
    )


def _intensity(n: int) -> float:
    """Returns the operations for each byte of a product of two n x n matrices."""
    work = _work(programs.matmul(n, n, n))
    return work.flops / work.bytes


def _require_limit(name: str, limit: Any, work: Work, speed: float, rate: float) -> None:
    """Requires that an answer names the limit of a program.

    Args:
        name: name of the answer.
        limit: the answer.
        work: work of the program.
        speed: bytes per second of the machine.
        rate: operations per second of the machine.

    Raises:
        Wrong: it is another word.
    """
    times = {"bytes": work.bytes / speed, "operations": work.flops / rate}
    if limit is ...:
        raise Wrong(f"{name} is still a hole (...): replace it")
    if limit not in times:
        raise Wrong(f'{name}: expected "bytes" or "operations", but got {limit!r}')
    if times[limit] < max(times.values()):
        raise Wrong(
            f"{name}: it moves {work.bytes / 1e6:,.1f} MB and computes {work.flops / 1e6:,.0f} million operations; "
            "compute the time that each needs on this machine"
        )


CHAPTER = Chapter(
    __package__ or "",
    "Run something",
    [
        Exercise(
            "rms_norm",
            "The work of RMSNorm",
            ".py",
            judge_rms_norm,
            (
                "Which tensors must come from memory, and which must go there? Count each once, in bytes.",
                "For one element: it is squared, added to the sum of its row, and then? Steps that happen once for a "
                "row (the mean, the root) hardly count.",
                "`deplodock run -v -c \"nn.RMSNorm(512)(torch.randn(16, 512))\"` prints the bytes read and written "
                "together, and the operations.",
            ),
            modules=PASSES,
        ),
        Exercise(
            "separate",
            "The same operators, one kernel each",
            ".py",
            judge_separate,
            (
                "Write down for each of the six lines which tensors it reads and which it writes.",
                "Tensors of ROWS x COLUMNS are read or written 7 times. Tensors of ROWS x 1 hardly count.",
                "The bytes of one kernel are those of exercise 0.1, read and written, for this shape.",
            ),
            modules=PASSES,
        ),
        Exercise(
            "limit",
            "Bytes or operations",
            ".py",
            judge_limit,
            (
                "Time for the bytes: bytes / BYTES_PER_SECOND. Time for the operations: operations / "
                "OPERATIONS_PER_SECOND. The larger one limits.",
                "A matmul of m x k and k x n has m * n * k multiplications and as many additions. It moves at least "
                "m * k + k * n + m * n elements.",
                "For n x n matrices: 2 n^3 operations and 12 n^2 bytes, so n / 6 operations for each byte. How many "
                "operations does the machine compute in the time of one byte?",
            ),
            modules=PASSES,
        ),
    ],
)  # fmt: skip
