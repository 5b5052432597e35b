"""Edits of a function's syntax tree: what is replaced is found by its form, not by its text.

A pattern is an expression or statement in which one capital letter stands for any expression (the same one where it
occurs twice), `_` for any, `...` in a list for any further ones. So neither formatting nor the names of variables that
a letter stands for matter.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

_IGNORED = ("ctx", "type_comment", "kind", "decorator_list")

Bindings = dict[str, ast.AST]


def parse_pattern(text: str) -> ast.AST:
    """The tree of a pattern or of a replacement: an expression, else a statement."""
    (statement,) = ast.parse(text).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def is_letter(node: object) -> bool:
    """Whether a node of a pattern stands for any expression."""
    return isinstance(node, ast.Name) and len(node.id) == 1 and (node.id == "_" or "A" <= node.id <= "Z")


def matches(pattern: object, node: object, bound: Bindings) -> bool:
    """Whether `node` has the form of `pattern`; `bound` gets what the letters stand for."""
    if is_letter(pattern) and isinstance(node, ast.expr):
        assert isinstance(pattern, ast.Name)
        if pattern.id == "_":
            return True
        return ast.unparse(bound.setdefault(pattern.id, node)) == ast.unparse(node)
    if isinstance(pattern, list) and isinstance(node, list):
        if pattern and isinstance(pattern[-1], ast.Constant) and pattern[-1].value is ...:
            pattern, node = pattern[:-1], node[: len(pattern) - 1]
        return len(pattern) == len(node) and all(matches(p, n, bound) for p, n in zip(pattern, node, strict=True))
    if type(pattern) is not type(node):
        return False
    if not isinstance(pattern, ast.AST):
        return pattern == node
    fields = [f for f in pattern._fields if f not in _IGNORED]
    return all(matches(getattr(pattern, f), getattr(node, f), bound) for f in fields)


def preorder(node: ast.AST) -> Iterator[ast.AST]:
    """A tree's nodes in the order of the source, each before those inside it."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from preorder(child)


def find(tree: ast.AST, pattern: str) -> list[tuple[ast.AST, Bindings]]:
    """Every node of the form of `pattern`, with what its letters stand for."""
    form = parse_pattern(pattern)
    return [(node, bound) for node in preorder(tree) if matches(form, node, bound := {})]


class _Substitute(ast.NodeTransformer):
    def __init__(self, bound: Bindings) -> None:
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.bound[node.id]) if node.id in self.bound else node


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def replaced(tree: ast.Module, pattern: str, replacement: str, number: int = 0) -> ast.Module | None:
    """`tree` with match `number` of `pattern` replaced; None if there are fewer."""
    found = find(tree, pattern)
    if len(found) <= number:
        return None
    node, bound = found[number]
    new = _Substitute(bound).visit(parse_pattern(replacement))
    _Replace(node, new).visit(tree)
    return ast.fix_missing_locations(tree)
