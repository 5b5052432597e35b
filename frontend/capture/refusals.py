"""Error messages in the user's terms: with the user's call, the location, the reason, the kind and a remedy.

A *refusal* is the error for a program that cannot be compiled; its *kind* is a section of `docs/refusals.md`.

- `refusal_of` translates an exception that PyTorch raised while it traced the program.
- `UserCalls.complete` adds the user's call, the location, the kind and a remedy to an error of this library.
- `together` combines all errors of a program into one.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch._ops import HigherOrderOperator
from torch.fx import Graph, Node

from ...errors import (
    BorderError,
    CaptureError,
    CompileError,
    DeplodockError,
    ExecutionError,
    PluginError,
    ScheduleError,
    ShapeError,
    TargetError,
    UnsupportedError,
    one_line,
)
from ...passes.convert.torch_to_tensor.registry import DATA_DEPENDENT, SPARSE
from .source_locations import (
    Origin,
    blame,
    call_in,
    defined_at,
    expression_of_error,
    function_name,
    innermost_of_error,
    public_name,
    shown,
)


@dataclass(frozen=True)
class Rule:
    """Translation of an exception of PyTorch.

    Attributes:
        pattern: regular expression that is searched in `Type: text` of the exception.
        kind: kind of the refusal.
        reason: reason, with named groups of the pattern in braces; empty to keep PyTorch's text.
        remedy: advice for the user, or None.
    """

    pattern: str
    kind: str
    reason: str
    remedy: str | None


_RULES = r"""
input integers as dynamic
    dynamic-sizes: a number among the arguments cannot vary; pass it as a tensor, or compile for each number
Error: (?P<text>.*dynamic_shapes.*)
    dynamic-sizes: {text}; correct dynamic_shapes
^TypeError: (?P<text>missing a required argument.*|too many positional.*|got an unexpected keyword.*)
    wrong-arguments: the example arguments do not fit the signature: {text}; give one for each parameter without a
    default
GuardOnDataDependent\w+: Could not guard on data-dependent expression [a-z]*\d+ \(unhinted
    data-dependent-size: the result is a Python number that depends on the values of a tensor, {unknown}; keep it a
    tensor, or pass the number as an argument
GuardOnDataDependent\w+: Could not guard on data-dependent expression
    data-dependent-branch: the branch depends on the values of a tensor, {unknown}
GuardOnDataDependent|PendingUnbacked|UnbackedSymbol
    data-dependent-size: the result is a Python number that depends on the values of a tensor, {unknown}; write n.item()
    for a size, pass the number as an argument, or keep the shape fixed with a mask (torch.where)
data-dependent control flow
    data-dependent-branch: the branch depends on the values of a tensor, {unknown}
DataDependentOutput
    data-dependent-branch: the result is a truth value of Python that depends on the values of a tensor, {unknown}
DynamicOutputShape
    data-dependent-size: the shape of the result is not known before it is computed, and the operator is not supported
FakeTensorDeviceMismatch|same device
    devices-and-types: ; move all to one device (x.to(y.device))
support for cuda|NVIDIA|CUDA enabled|cannot access accelerator
    devices-and-types: the program asks for a CUDA device, and there is none; use the device of an argument
    (device=x.device)
\.numpy\(\) is not supported|numpy\.ndarray|__array__
    python-code: NumPy reads the values of a tensor, {unknown}; use the function of torch of the same name, or call
    NumPy outside of the compiled program
unsupported format string|__format__
    python-code: the values of a tensor are formatted as text, {unknown}; return the tensor, and print it outside of the
    compiled program
data is not allocated yet
    data-dependent-size: a tensor is made of Python numbers that are values of another tensor, {unknown}; use
    torch.stack or torch.cat
Constant \w+ is mutated
    mutation-and-aliasing: a tensor that is neither an argument nor a buffer is changed in place; pass it as an
    argument, or register it (self.register_buffer)
size_bytes_is_heap_allocated
    mutation-and-aliasing: two arguments share memory, and one of them is changed in place; pass a copy of one
    (x.clone()), or pass their common tensor and make the views inside
fake tensor in the exported program constant
    mutation-and-aliasing: a tensor is changed behind autograd (x.data, x.set_), which cannot be captured; change the
    tensor itself under torch.no_grad()
Found <class '(?P<type>[\w.]+)'> in output
    python-code: the result holds an object of type {type}, which is neither a tensor nor a number nor a container of
    these; return tensors, in tuples, lists and dictionaries, or register the class (torch.utils._pytree)
Unsupported input type <class '(?P<type>[\w.]+)'>
    wrong-arguments: an argument holds an object of type {type}, which is neither a tensor nor a number nor a container
    of these; pass its tensors as arguments, or register the class (torch.utils._pytree)
not tracked with proxy|cast NotImplemented to Tensor|[Nn]ested|jagged
    tensor-kinds: nested tensors are not supported; pad to one size (torch.nn.utils.rnn.pad_sequence) and pass a mask
[Ss]parse
    tensor-kinds: sparse tensors are not supported; use a dense tensor (x.to_dense())
[Qq]uantize
    tensor-kinds: quantized tensors are not supported; use x.dequantize()
is not iterable|HigherOrder|expected compiled_fn to be GraphModule|found no compiled frames
    higher-order-operators: an operator that takes a graph is not supported here
fake impl|UnsupportedOperator|no meta kernel|meta-dispatch
    unsupported-operator: the operator does not tell the shape of its result before it runs; describe it with
    torch.library.register_fake
[Pp]ickle
    python-code: the values of a tensor are written or sent, {unknown}
RecursionError
    python-code: ; write a loop, or call fewer levels
"""
"""Source of `RULES`: each pattern is followed by indented lines of the form `kind: reason; remedy`."""


def _rules() -> Iterator[Rule]:
    for pattern, lines in re.findall(r"(\S.*)\n((?: +.*\n)+)", _RULES):
        text = " ".join(lines.split()).replace("{unknown}", "which are not known while the program is compiled")
        kind, _, explanation = text.partition(":")
        reason, _, remedy = explanation.partition(";")
        yield Rule(pattern, kind, reason.strip(), remedy.strip() or None)


RULES = tuple(_rules())
"""Translations in the order in which they are tried. The first rule that matches applies."""

INTERNAL = re.compile(
    r"\b[sz]?u[uf]?\d+\b|\bzuf\d+\b|GuardOn\w+|unhinted|'?Node'? object|aten(?:::|\.)\w+|FakeTensor|"
    r"GraphModule|\bs\d+\b|\bproxy\b|make_fx|TORCH_LOGS|functorch|pytree"
)
"""Pattern of PyTorch's internal names. A message that contains one is not shown to the user."""

_KINDS: tuple[tuple[type[CompileError], str], ...] = (
    (TargetError, "targets"),
    (UnsupportedError, "unsupported-operator"),
    (ShapeError, "wrong-program"),
)

_REASONS = (
    (DATA_DEPENDENT, "data-dependent-size"),
    ("depends on data", "data-dependent-size"),
    ("at a place that is computed", "data-dependent-size"),
    ("computed from a tensor's shape or contents", "data-dependent-size"),
    ("known only at run time", "dynamic-sizes"),
    ("size that varies", "dynamic-sizes"),
    (SPARSE, "tensor-kinds"),
    ("of another kind", "tensor-kinds"),
    ("of layout", "tensor-kinds"),
    ("the data type", "devices-and-types"),
    ("takes a graph", "higher-order-operators"),
    ("in place", "mutation-and-aliasing"),
    ("strides of a tensor", "mutation-and-aliasing"),
    ("is a view", "mutation-and-aliasing"),
    ("the program changes", "mutation-and-aliasing"),
    ("the program is another one", "dynamic-sizes"),
    ("the program holds only", "dynamic-sizes"),
    ("depends on which of too many sizes", "dynamic-sizes"),
)
"""Pairs (words in a reason, kind of the refusal). The first pair that matches applies."""


def refusal_of(error: BaseException, graphs: Sequence[Graph] = ()) -> CaptureError:
    """Returns the refusal for an exception that was raised while PyTorch traced the program.

    If the traceback has no frame of the user's code, a suspicious node in `graphs` provides the location.
    """
    from torch._dynamo.exc import TorchDynamoException  # imported with the exporter, at the first capture

    first = error
    while isinstance(first, TorchDynamoException) or str(first).startswith(_OF_DYNAMO):
        if (cause := first.__cause__ or first.__context__) is None:
            break
        first = cause
    text = one_line(first)
    lines = (line.strip().removeprefix("- ") for line in str(first).splitlines())
    violated = next((line[:300] for line in lines if line.startswith("Not all values")), None)
    written = expression_of_error(error)
    if violated is not None or type(first).__name__ == "ConstraintViolationError":
        refusal = CaptureError(_sizes(violated or text), kind="dynamic-sizes")
    elif (rule := next((r for r in RULES if re.search(r.pattern, text)), None)) is not None:
        match = re.search(rule.pattern, text)
        assert match is not None
        reason = rule.reason.format(**match.groupdict()) or _plain(text)
        refusal = CaptureError(reason, kind=rule.kind, remedy=rule.remedy)
    elif INTERNAL.search(text.replace("'FakeTensor' object", "")):
        refusal = CaptureError("PyTorch cannot trace this call", kind="python-code")
    else:
        by_user = written is not None and _raised_by_user(first)
        kind = "wrong-program" if by_user or isinstance(first, _WRONG) else "python-code"
        refusal = CaptureError(_plain(text), kind=kind)
    refusal.location = innermost_of_error(error)
    call = None if written is None else call_in(written, None)
    refusal.call = None if call is None or call.startswith(type(first).__name__) else call
    refusal.origin = error
    for node in (n for graph in graphs if refusal.location is None and (n := _suspect(graph, refusal.kind))):
        blame(refusal, node)
    return refusal


def _suspect(graph: Graph, kind: str | None) -> Node | None:
    if kind == "tensor-kinds":
        return next((n for n in graph.nodes if "nested" in str(n.target)), None)
    takers = (n for n in graph.nodes if isinstance(n.target, HigherOrderOperator))
    return next(takers, None) if kind == "higher-order-operators" else None


_OF_DYNAMO = "Dynamo failed to run FX node"
"""Prefix of the exception by which Dynamo of PyTorch 2.14 replaces an operator's exception."""

_WRONG = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, NameError, AssertionError, OSError)
"""Exception types that PyTorch and Python raise for programs that fail without a compiler as well."""


def _raised_by_user(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and innermost_of_error(error) == f"{shown(frames[-1].filename)}:{frames[-1].lineno}"


def _plain(text: str) -> str:
    """Returns the text of an exception without names of fake tensors, and without the full stop at its end."""
    text = text.replace("FakeTensorDeviceMismatchError", "RuntimeError").replace("FakeTensor", "Tensor")
    return re.sub(r"(?<!\.)\.$", "", text)


def _sizes(text: str) -> str:
    """Returns a reason for a violated constraint on sizes, from the text of PyTorch's exception."""
    held = re.search(r"Not all values of (\w+) = .* guard (\d+) <= .* <= (\d+)", text)
    if held is not None:
        values = held[2] if held[2] == held[3] else f"{held[2]} to {held[3]}"
        return f"the program holds only where {held[1]} is {values}"
    held = re.search(r"Not all values of (\w+) = L\['\w+'\]\.size\(\).* satisfy the generated guard (.*)", text)
    if held is None:
        return "the program holds for some of the declared sizes only"
    guard = re.sub(r"L\['\w+'\]\.size\(\)\[\d+\]", held[1], held[2].removesuffix("."))
    return f"the program holds only where {guard}"


@dataclass
class UserCalls:
    """Source of the user's calls for error messages about one program.

    Args:
        function: the compiled module or function; its name replaces an unknown call.
        place: (file, line) for operators and errors without one; None selects the definition of `function`.
        fallback: option `fallback` of `deplodock.compile`.
        origins: origins of operators, by (operator name, location).
    """

    function: Any = None
    place: tuple[str, int] | None = None
    fallback: str | None = None
    origins: dict[tuple[str, str | None], Origin] = field(default_factory=dict[tuple[str, str | None], Origin])

    def complete(self, error: CompileError) -> CompileError:
        """Adds calls, locations, kind and remedy to an error and its `others`, and returns the combined error."""
        for one in (error, *error.others):
            if isinstance(one, TargetError):
                continue
            # A BorderError is a message for authors of passes.
            if one.call is None and not isinstance(one, BorderError):
                one.call = self._call(one)
            one.location = one.location or self._default_place()
        error = together([error, *error.others])
        error.kind = error.kind or kind_of_refusal(error)
        if error.remedy is None and error.kind == "unsupported-operator":
            error.remedy = self._remedy(several=bool(error.others))
        return error

    def explained(self, error: DeplodockError) -> DeplodockError:
        """Replaces the ATen operator in an error that was raised while a program ran by the user's call."""
        if not isinstance(error, ExecutionError) or error.call is not None:
            return error
        if (assertion := _ASSERTED.fullmatch(error.reason)) is not None:
            places = (place for _, place in self.origins if f"/{place}".endswith(f"/{assertion['place']}"))
            error.location = error.location or next(places, assertion["place"])
            error.operator, error.reason = assertion["operator"], assertion["reason"]
        if (error.operator or "").startswith("aten."):
            error.call = self._call(error)
            error.kind = error.kind or "wrong-program"
        return error

    def _default_place(self) -> str | None:
        if self.place is not None:
            return ":".join(map(str, self.place))
        return None if self.function is None else defined_at(self.function)

    def _call(self, error: CompileError) -> str | None:
        origin = self.origins.get((error.operator or "", error.location))
        if origin is None and error.location is not None:
            origin = next((o for (_, place), o in self.origins.items() if place == error.location), None)
        if origin is not None and (call := origin.call()) is not None:
            return call
        operator, name = error.operator, "the compiled function"
        name = name if self.function is None else function_name(self.function)
        if operator is not None and "_backward" in operator:
            return f"a gradient of {name}"
        if operator is not None:
            return operator if operator.startswith("torch.") else public_name(operator.removeprefix("aten.")) or name
        return None if error.argument is not None or isinstance(error, _OF_OPTIONS) else name

    def _remedy(self, several: bool) -> str:
        operators = "them" if several else "it"
        if self.fallback is not None:
            return f"call {operators} outside of the compiled program"
        return f'pass fallback="eager", which leaves {operators} to PyTorch'


def together(errors: Iterable[CompileError]) -> CompileError:
    """Returns the first of several errors, with the other errors in `others`. Each call is mentioned once."""
    distinct: dict[Any, CompileError] = {}
    for error in errors:
        distinct.setdefault((error.location, error.call or error.operator, error.argument), error)
    first, *others = distinct.values()
    first.others = tuple(others)
    return first


_ASSERTED = re.compile(
    r"(?:assertion in \w+: )?(?:(?P<place>\S+?:\d+(?::\d+)?): )?(?P<operator>aten\.[\w.]+): (?P<reason>.+)"
)
"""Pattern of the message of a failed assertion in a program: location, operator and reason."""

_OF_OPTIONS = (ScheduleError, TargetError, PluginError, ExecutionError)


def kind_of_refusal(error: CompileError) -> str | None:
    """Returns the kind of an error (a section of `docs/refusals.md`), or None if there is none."""
    by_reason = next((kind for words, kind in _REASONS if words in error.reason), None)
    return by_reason or next((kind for cls, kind in _KINDS if isinstance(error, cls)), None)
