"""Searches and replaces expressions in the syntax tree of a function.

A pattern is an expression or statement. A single capital letter in it matches any expression, and the same one at each
occurrence; `_` matches any expression, `...` in a list any further elements. So a match does not depend on formatting,
nor on the names of variables that a letter matches.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

_IGNORED = ("ctx", "type_comment", "kind", "decorator_list")

Bindings = dict[str, ast.AST]


def parse_pattern(text: str) -> ast.AST:
    """Parses a pattern or a replacement as an expression, or else as a statement."""
    (statement,) = ast.parse(text).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def is_letter(node: object) -> bool:
    """Returns true if a node of a pattern is a capital letter, which matches any expression."""
    return isinstance(node, ast.Name) and len(node.id) == 1 and (node.id == "_" or "A" <= node.id <= "Z")


def matches(pattern: object, node: object, bound: Bindings) -> bool:
    """Returns true if a node matches a pattern. Adds the expressions that letters match to `bound`."""
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
    """Yields the nodes of a tree in source order, parents before children."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from preorder(child)


def find(tree: ast.AST, pattern: str) -> list[tuple[ast.AST, Bindings]]:
    """Returns each node that matches a pattern, with the expressions that letters match."""
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
    """Returns a tree in which match `number` of a pattern is replaced, or None if there are fewer matches."""
    found = find(tree, pattern)
    if len(found) <= number:
        return None
    node, bound = found[number]
    new = _Substitute(bound).visit(parse_pattern(replacement))
    _Replace(node, new).visit(tree)
    return ast.fix_missing_locations(tree)
