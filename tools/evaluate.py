"""Evaluates the Python of the option `-c` and of files, and divides it into inputs and a program.

Expressions that depend on no tensor (modules, sizes, random tensors) are evaluated. Tensors among their values are the
inputs. Expressions of inputs become the program. The code of the user is executed, by design.

A text such as `x:0=batch:1:1000` makes a size dynamic: dimension 0 of the input `x` is `batch`, from 1 to 1000.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from ..errors import CompileError, one_line
from ..frontend.capture.export import callable_module
from ..frontend.capture.source_locations import EXPRESSION, innermost_of_error
from ..frontend.modules import read_text


@dataclass(frozen=True)
class Program:
    """Callable with example arguments.

    Attributes:
        names: names of the argument tensors; empty for the names of the parameters.
        place: file and line of the source.
        dynamic_shapes: sizes that vary, as for `deplodock.compile`.
        expected: the same function in another system; default: eager PyTorch.
        peer: name of that system.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    names: tuple[str, ...] = ()
    place: tuple[str, int] | None = None
    dynamic_shapes: Any = None
    expected: Callable[..., Any] | None = None
    peer: str = "PyTorch"

    def call_peer(self) -> Any:
        """Returns the result of the other system for the example arguments."""
        return (self.expected or self.function)(*self.args, **self.kwargs)


class PythonError(CompileError):
    """Error in the Python of the user, or raised by it."""


def evaluate(code: str, file: str = EXPRESSION, names: Mapping[str, Any] | None = None) -> Program:
    """Returns the program in `code`, whose last statement is an expression.

    Args:
        code: the code.
        file: name of the file that has the code, for locations.
        names: names in scope, in addition to `torch`, `nn`, `F` and `math`. Tensors among them are inputs.

    Raises:
        PythonError: with the location in the code.
    """
    code = code.strip() if file == EXPRESSION else code
    tree = _parse(code, file)
    if file == EXPRESSION:  # Error messages can then quote the source line.
        linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        line = tree.body[-1].lineno if tree.body else 1
        raise PythonError("the last statement is not an expression to compile", location=f"{file}:{line}")
    namespace: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "math": math}
    namespace |= {**(names or {}), "__name__": "__deplodock__"}
    splitter = _Splitter(namespace, file)
    splitter.note_tensors({n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in (names or {})})
    return splitter.split(tree)


def load_file(path: str) -> Program:
    """Returns the program in a Python file.

    The file ends with an expression, or it defines `model` or `fn`, and `inputs`: a tensor, a tuple or list of
    arguments, or a dictionary of keyword arguments.

    Raises:
        CompileError: if the file has another form or cannot be read.
    """
    code = read_text(path)
    tree = _parse(code, path)
    with _imports_from(Path(path).resolve().parent):
        if len(tree.body) > 1 and isinstance(tree.body[-1], ast.Expr):
            return evaluate(code, path)
        namespace: dict[str, Any] = {"__name__": "__deplodock__", "__file__": path}
        with _python_errors(path):
            exec(compile(tree, path, "exec"), namespace)
    function = namespace.get("model", namespace.get("fn"))
    if not callable(function) or "inputs" not in namespace:
        raise CompileError(
            "the file defines no `model` or `fn` with `inputs`, nor ends with an expression", location=path
        )
    inputs = namespace["inputs"]
    if isinstance(inputs, dict):
        return Program(function, (), inputs, place=(path, 1))
    return Program(function, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), place=(path, 1))


def _parse(code: str, file: str) -> ast.Module:
    try:
        return ast.parse(code, file)
    except SyntaxError as error:
        place = f"{file}:{error.lineno}:{error.offset}" if error.lineno else file
        raise PythonError(f"SyntaxError: {error.msg}", location=place) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise PythonError(f"{type(error).__name__}: {error}", location=file) from None


@contextmanager
def _imports_from(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


@contextmanager
def _python_errors(file: str, node: ast.AST | None = None) -> Iterator[None]:
    """Raises an error of the user's code as PythonError, at `node` or at the line that raised it."""
    try:
        yield
    except CompileError:
        raise
    except (Exception, SystemExit) as error:
        place = f"{file}:{node.lineno}:{node.col_offset + 1}" if isinstance(node, ast.expr | ast.stmt) else None
        raise PythonError(one_line(error), location=place or innermost_of_error(error) or file) from error


class _Expression(torch.nn.Module):
    """`torch.nn.Module` whose `forward` runs the user's statements. Its submodules are the modules that they use."""

    def __init__(self, forward: Callable[..., Any], modules: dict[str, torch.nn.Module]) -> None:
        super().__init__()
        self.forward = forward
        for name, module in modules.items():
            self.add_module(name, module)
        self.train(any(m.training for m in modules.values()))


class _Splitter(ast.NodeTransformer):
    """Divides code into expressions that are evaluated, with names in `namespace`, and the computation on `inputs`."""

    def __init__(self, namespace: dict[str, Any], file: str) -> None:
        self.namespace, self.file = namespace, file
        self.inputs: list[str] = []
        self.computed: set[str] = set()

    def split(self, tree: ast.Module) -> Program:
        """Returns the program of `tree`, whose last statement is an expression."""
        body: list[ast.stmt] = []
        for statement in tree.body[:-1]:
            body += self._statement(statement)
        last = tree.body[-1]
        assert isinstance(last, ast.Expr)
        value: ast.expr = self.visit(last.value)
        if not body and (not self._depends(value) or isinstance(value, ast.Name) and value.id in self.inputs):
            self._refuse(value)
        direct = None if body else self._direct_call(value)
        if direct is not None:
            return direct
        returned = ast.copy_location(ast.Return(value), last)
        return self._function([*body, returned], last)

    def _statement(self, statement: ast.stmt) -> list[ast.stmt]:
        """Executes a statement that depends on no input. Returns another statement as a part of the program."""
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            if isinstance(statement, ast.Assign) and self._named_input(statement):
                return []
            statement = self.visit(statement)
            if self._depends(statement):
                self.computed |= _bound(statement)
                return [statement]
        module = ast.fix_missing_locations(ast.Module([statement], []))
        with _python_errors(self.file):
            exec(compile(module, self.file, "exec"), self.namespace)
        self.note_tensors(_bound(statement))
        return []

    def _named_input(self, statement: ast.Assign) -> bool:
        """Evaluates `name = call(...)` without inputs, and returns true; returns false for other statements."""
        target = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(target, ast.Name) or not isinstance(statement.value, ast.Call):
            return False
        inner = (n for n in ast.walk(statement.value) if isinstance(n, ast.Call) and n is not statement.value)
        if self._depends(statement.value) or any(inner):  # An inner call may create a tensor, which becomes an input.
            return False
        value = self._value(statement.value)
        self.computed.discard(target.id)
        self.namespace[target.id] = value
        self.note_tensors({target.id})
        return True

    def note_tensors(self, names: set[str]) -> None:
        """Adds the tensors among names of the namespace to the inputs."""
        for name in sorted(names):
            if isinstance(self.namespace.get(name), torch.Tensor) and name not in self.inputs:
                self.inputs.append(name)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if self._depends(node) or not self._can_be_evaluated(node):
            return node
        value = self._value(node)
        name = self._fresh("x" if isinstance(value, torch.Tensor) else type(value).__name__.lower())
        self.namespace[name] = value
        self.note_tensors({name})
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def visit_For(self, node: ast.For) -> ast.stmt:
        # Each iteration evaluates the calls of the body again, such as `nn.Linear(8, 8)` or `torch.randn(8)`.
        node.iter = self.visit(node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.stmt:
        return node

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> ast.expr:
        node.generators[0].iter = self.visit(node.generators[0].iter)
        return node

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        # The body of a lambda is a part of the program: it is evaluated when the lambda is called.
        return node

    def _value(self, node: ast.expr) -> Any:
        with _python_errors(self.file, node):
            return eval(compile(ast.fix_missing_locations(ast.Expression(node)), self.file, "eval"), self.namespace)

    def _depends(self, node: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and (n.id in self.inputs or n.id in self.computed) for n in ast.walk(node))

    def _can_be_evaluated(self, node: ast.AST) -> bool:
        """Returns true if `node` uses no variable of a comprehension or a parameter of a lambda inside `node`.

        Raises:
            PythonError: a name is not defined.
        """
        local = _bound(node) | {a.arg for n in ast.walk(node) if isinstance(n, ast.Lambda) for a in n.args.args}
        loaded = [n for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)]
        for name in loaded:
            if name.id not in local and name.id not in self.namespace and not hasattr(builtins, name.id):
                place = f"{self.file}:{name.lineno}:{name.col_offset + 1}"
                raise PythonError(f"NameError: name {name.id!r} is not defined", location=place)
        return not any(n.id in local for n in loaded)

    def _fresh(self, stem: str) -> str:
        # Names of builtins are taken: the value of `float("nan")` must not be called `float`.
        taken = [*self.namespace, *self.computed, *dir(builtins)]
        if stem not in taken:
            return stem
        return next(f"{stem}{i}" for i in range(1, len(taken) + 2) if f"{stem}{i}" not in taken)

    def _refuse(self, value: ast.expr) -> None:
        place = f"{self.file}:{value.lineno}:{value.col_offset + 1}"
        if isinstance(self._value(value), torch.nn.Module):
            raise PythonError("a module alone: call it with its inputs", location=place)
        raise PythonError("nothing is computed from a tensor here", location=place)

    def _direct_call(self, value: ast.expr) -> Program | None:
        """Returns the module of `module(input, ...)` as the program, or None for other calls.

        The parameters of the module then keep their names.
        """
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
            return None
        module = self.namespace.get(value.func.id)
        passed = [*value.args, *(k.value for k in value.keywords)]
        simple = all(isinstance(a, ast.Name | ast.Constant) for a in passed) and all(k.arg for k in value.keywords)
        if not isinstance(module, torch.nn.Module) or not simple:
            return None
        kwargs = {str(k.arg): self._value(k.value) for k in value.keywords}
        return Program(module, tuple(map(self._value, value.args)), kwargs, place=(self.file, value.lineno))

    def _function(self, body: Sequence[ast.stmt], last: ast.Expr) -> Program:
        used = {n.id for statement in body for n in ast.walk(statement) if isinstance(n, ast.Name)}
        inputs = [name for name in self.inputs if name in used]
        arguments = ast.arguments([], [ast.arg(name) for name in inputs], None, [], [], None, [])
        definition = ast.FunctionDef("forward", arguments, list(body), [], None)
        module = ast.fix_missing_locations(ast.Module([ast.copy_location(definition, body[0])], []))
        scope = dict(self.namespace)
        exec(compile(module, self.file, "exec"), scope)
        modules = {n: v for n, v in self.namespace.items() if n in used and isinstance(v, torch.nn.Module)}
        function = _Expression(scope["forward"], modules) if modules else scope["forward"]
        tensors = tuple(self.namespace[name] for name in inputs)
        return Program(function, tensors, names=tuple(inputs), place=(self.file, last.lineno))


def _bound(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


_FORM = re.compile(r"(?P<name>[^:=]+):(?P<dim>-?\d+)=(?P<size>[A-Za-z_]\w*)(?::(?P<low>\d+))?(?::(?P<high>\d+))?")


def read_dynamic(texts: Sequence[str], program: Program) -> Any:
    """Returns the argument `dynamic_shapes` of `torch.export.export` for a program and texts `x:0=batch:1:1000`.

    The default range is 1 to 65535. A size has the same range in all inputs.

    Raises:
        CompileError: for a text of another form, an unknown input, or an empty range.
    """
    if not texts:
        return None
    sizes_of_inputs: dict[str, dict[int, Any]] = {}
    sizes: dict[str, Any] = {}
    for text in texts:
        form = _FORM.fullmatch(text)
        if form is None:
            raise CompileError(
                f"{text!r} is not INPUT:DIMENSION=SIZE[:MIN[:MAX]], as x:0=batch:1:1000", argument="dynamic"
            )
        size = form["size"]
        if size not in sizes:
            low, high = int(form["low"] or 1), int(form["high"] or 65535)
            if low >= high:
                raise CompileError(f"{size} lies in no range: {low} to {high}", argument="dynamic")
            sizes[size] = Dim(size, min=low, max=high)
        elif form["low"]:
            raise CompileError(f"the range of {size} is given twice", argument="dynamic")
        sizes_of_inputs.setdefault(form["name"], {})[int(form["dim"])] = sizes[size]
    module = callable_module(program.function)
    arguments = inspect.signature(module.forward).bind(*program.args, **program.kwargs).arguments
    names = _names(arguments, program.names)
    inputs: list[str] = []

    def spec(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        inputs.append(next(names))
        sizes_of_dims = {d % max(value.dim(), 1): s for d, s in sizes_of_inputs.get(inputs[-1], {}).items()}
        return {d: sizes_of_dims.get(d) for d in range(value.dim())} if sizes_of_dims else None

    shapes = pytree.tree_map(spec, dict(arguments))
    for name in sizes_of_inputs:
        if name not in inputs:
            raise CompileError(f"there is no input {name!r}; there are {', '.join(inputs)}", argument="dynamic")
    return shapes


def _names(arguments: dict[str, Any], chosen: Sequence[str]) -> Iterator[str]:
    """Yields a name for each tensor in the arguments: first the chosen names, then the names of the parameters."""
    remaining = iter(chosen)
    for parameter, value in arguments.items():
        tensors = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
        for i, _ in enumerate(tensors):
            yield next(remaining, parameter if len(tensors) == 1 else f"{parameter}_{i}")
