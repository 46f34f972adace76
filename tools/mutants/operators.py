"""What a mutant is: one small change of one expression or statement, found in the syntax tree and made in the text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

BOUNDARIES: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
}
SIGNS: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+"}

LEFT_OUT = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),  # nested ones are walked by themselves
    *(ast.Raise, ast.Assert),
    ast.JoinedStr,  # before Python 3.12 the tree has no places in these
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of a module's text. `start`, `end`: byte offsets of what is replaced; `line`: where that begins, from 1."""

    module: str
    line: int
    operator: str
    start: int
    end: int
    new: str

    @property
    def name(self) -> str:
        """What it is called in results, the same for the same text of a module."""
        return f"{self.module}:{self.line} {self.operator} {self.start}"

    def of(self, source: bytes) -> bytes:
        """Return the module's text with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutants(module: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a module's functions, in the order of its text.

    Not changed are defaults of settings, which are at a module's or a class's level, annotations, and what logs or raises.
    """
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    found: list[Mutant] = []
    for node in _mutable(ast.parse(source)):
        for operator, part, new in _changes(node, source, starts):
            start, end = _span(part, starts)
            found.append(Mutant(module, part.lineno, operator, start, end, new))
    return sorted(set(found), key=lambda one: (one.start, one.operator))


def _mutable(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes of functions' bodies, without nested docstrings, annotations, `raise` and `assert`."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            body = function.body[1:] if ast.get_docstring(function) is not None else function.body
            waiting: list[ast.AST] = list(body)
            while waiting:
                node = waiting.pop()
                if isinstance(node, LEFT_OUT):
                    continue
                if isinstance(node, ast.AnnAssign):
                    waiting.extend([node.value] if node.value else [])
                    continue
                if isinstance(node, ast.expr | ast.stmt):
                    yield node
                waiting.extend(ast.iter_child_nodes(node))


def _changes(
    node: ast.expr | ast.stmt, source: bytes, starts: list[int]
) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Yield each change of a node: its operator, what is replaced, and the new text."""

    def text(part: ast.expr) -> str:
        start, end = _span(part, starts)
        return source[start:end].decode()

    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in BOUNDARIES:
            yield "comparison", node, f"({text(left)}) {BOUNDARIES[type(operator)]} ({text(right)})"
        case ast.BinOp(left, operator, right) if type(operator) in SIGNS:
            yield "arithmetic", node, f"({text(left)}) {SIGNS[type(operator)]} ({text(right)})"
        case ast.BoolOp(operator, values):
            word = " or " if isinstance(operator, ast.And) else " and "
            yield "logic", node, "(" + word.join(f"({text(value)})" for value in values) + ")"
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield "condition", test, f"(not ({text(test)}))"
        case ast.Expr(ast.Await(ast.Call())) | ast.Expr(ast.Call()):
            if not _logs(node):
                yield "dropped call", node, "pass"
        case ast.Constant(bool() as value):
            yield "constant", node, str(not value)
        case ast.Constant(int() | float() as value):
            yield "constant", node, repr(value + 1)
        case _:
            pass


def _logs(node: ast.Expr) -> bool:
    """Return whether a statement only logs: no test has to see that."""
    call = node.value
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and "log" in call.func.value.id.casefold()
    )


def _span(node: ast.expr | ast.stmt, starts: list[int]) -> tuple[int, int]:
    """Return the byte offsets of a node: columns of the syntax tree count bytes."""
    end_line, end_column = (
        node.end_lineno or node.lineno,
        node.end_col_offset or 0,
    )  # both are there in what was parsed
    return starts[node.lineno - 1] + node.col_offset, starts[end_line - 1] + end_column
