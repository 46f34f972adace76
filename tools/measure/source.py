"""Counts source code: lines, statements, classes, Protocols and their implementers, wirings, private APIs of others.

Names are resolved within one file, and classes by name over all files, so the counts of implementers and of private APIs are
estimates. They are made the same way at every commit, which is what a comparison needs.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

LINE_LENGTH = 110
TOOLING = ("tools", "specs", "distributions", "docs", "examples", "page", ".ci")
"""Top-level folders that neither ship nor test."""
LANGUAGES = {
    ".js": "JavaScript",
    ".mjs": "JavaScript",
    ".ts": "TypeScript",
    ".css": "CSS",
    ".html": "HTML",
    ".c": "C",
    ".h": "C",
    ".lua": "Lua",
}
_SUPPRESSED_PRIVATE = re.compile(r"#\s*noqa:[^#]*\bSLF001\b")


@dataclass
class PythonCounts:
    """What the Python code of one part comes to."""

    lines: int = 0
    """Formatted to `LINE_LENGTH`, without docstrings; comments and blank lines count."""
    statements: int = 0
    """AST statements, without docstrings."""
    modules: int = 0
    folders: int = 0
    classes: int = 0
    functions: int = 0
    largest_module: int = 0
    """Lines of the longest module, counted as `lines`."""


@dataclass
class Wiring:
    """What hides from "go to definition" who calls whom, in the code that ships."""

    protocols: int = 0
    protocols_with_one_implementer: int = 0
    callable_wirings: int = 0
    """`Callable[…]` in annotations."""
    any: int = 0
    """`Any` in annotations."""
    private_apis: int = 0
    """Places that use a name with a leading underscore of another distribution."""


@dataclass
class Counts:
    """All counts of a tree."""

    product: PythonCounts
    tests: PythonCounts
    tooling: PythonCounts
    wiring: Wiring
    other_languages: dict[str, int]
    """Lines of what ships, by language; vendored files apart, as "vendored"."""
    protocols: dict[str, list[str]] = field(default_factory=dict)
    """Implementers by Protocol (`file:name`)."""
    private_apis: list[str] = field(default_factory=list)
    """`file:line name`."""


def count(root: Path) -> Counts:
    """Return the counts of the tracked files under `root`, a git checkout.

    Raises CalledProcessError outside of a checkout, SyntaxError for Python that can't be parsed.
    """
    parts: dict[str, dict[str, str]] = {"product": {}, "tests": {}, "tooling": {}}
    other: Counter[str] = Counter()
    for path in _tracked(root):
        part = _part(path)
        if path.suffix == ".py":
            parts[part][str(path)] = (root / path).read_text(encoding="utf-8")
        elif part == "product" and path.suffix in LANGUAGES:
            lines = (root / path).read_text(encoding="utf-8").count("\n")
            other["vendored" if "vendor" in path.parts else LANGUAGES[path.suffix]] += lines
    trees = {path: ast.parse(text) for path, text in parts["product"].items()}
    protocols = _implementers(trees)
    private = sorted(_private_apis(trees, parts["product"]))
    annotations = [
        node for tree in trees.values() for annotation in _annotations(tree) for node in ast.walk(annotation)
    ]
    return Counts(
        product=_python(parts["product"]),
        tests=_python(parts["tests"]),
        tooling=_python(parts["tooling"]),
        wiring=Wiring(
            protocols=len(protocols),
            protocols_with_one_implementer=sum(len(found) <= 1 for found in protocols.values()),
            callable_wirings=sum(
                isinstance(node, ast.Subscript) and _name(node.value) == "Callable" for node in annotations
            ),
            any=sum(
                isinstance(node, ast.Name | ast.Attribute) and _name(node) == "Any" for node in annotations
            ),
            private_apis=len(private),
        ),
        other_languages=dict(sorted(other.items())),
        protocols=protocols,
        private_apis=private,
    )


def _tracked(root: Path) -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True
    ).stdout
    yield from (path for name in listed.split("\0") if name and (root / (path := Path(name))).is_file())


def _part(path: Path) -> str:
    if path.parts[0] == "tests":
        return "tests"
    return "tooling" if path.parts[0] in TOOLING else "product"


def _python(sources: Mapping[str, str]) -> PythonCounts:
    counts = PythonCounts(modules=len(sources), folders=len({str(Path(path).parent) for path in sources}))
    for text in sources.values():
        formatted = _formatted(text)
        nodes = list(ast.walk(ast.parse(formatted)))
        docstrings = [node for node in nodes if isinstance(node, ast.Expr) and _is_docstring(node)]
        doc_lines = sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in docstrings)
        lines = formatted.count("\n") - doc_lines
        counts.lines += lines
        counts.largest_module = max(counts.largest_module, lines)
        counts.statements += sum(isinstance(node, ast.stmt) for node in nodes) - len(docstrings)
        counts.classes += sum(isinstance(node, ast.ClassDef) for node in nodes)
        counts.functions += sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
    return counts


def _formatted(text: str) -> str:
    """Return source as `ruff format` writes it, so that no line is saved by formatting."""
    ran = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(LINE_LENGTH), "-"],
        input=text,
        check=True,
        capture_output=True,
        text=True,
    )
    return ran.stdout


def _is_docstring(node: ast.AST) -> bool:
    """Return whether a node is a string that is a statement: documentation, wherever it is."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _annotations(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=annotation) | ast.AnnAssign(annotation=annotation) if (
                annotation is not None
            ):
                yield annotation
            case ast.FunctionDef(returns=returns) | ast.AsyncFunctionDef(returns=returns) if (
                returns is not None
            ):
                yield returns
            case ast.Assign(value=ast.Subscript() as value):  # an alias: `Handler = Callable[…]`
                yield value


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _name(value)
        case _:
            return ""


# --- Protocols --------------------------------------------------------------------------------------------------------------


@dataclass
class _Class:
    place: str
    bases: list[str]
    members: set[str]

    @property
    def is_protocol(self) -> bool:
        return "Protocol" in self.bases


def _implementers(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return who implements each Protocol: subclasses, and classes that have all its members."""
    classes: dict[str, list[_Class]] = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                # a `Protocol` of asyncio is a class of callbacks, and none of typing's
                bases = [_name(base) for base in node.bases if ast.unparse(base) != "asyncio.Protocol"]
                classes[node.name].append(_Class(f"{path}:{node.name}", bases, _members(node)))
    everyone = [one for same_name in classes.values() for one in same_name]
    return {
        protocol.place: sorted(
            one.place
            for one in everyone
            if not one.is_protocol and _implements(one, protocol, _with_bases(protocol, classes), classes)
        )
        for protocol in sorted(everyone, key=lambda one: one.place)
        if protocol.is_protocol
    }


def _implements(
    one: _Class, protocol: _Class, members: set[str], classes: Mapping[str, list[_Class]]
) -> bool:
    name = protocol.place.rpartition(":")[2]
    return name in one.bases or (bool(members) and members <= _with_bases(one, classes))


def _with_bases(
    one: _Class, classes: Mapping[str, list[_Class]], seen: frozenset[str] = frozenset()
) -> set[str]:
    members = set(one.members)
    for base in one.bases:
        # typing's bases, although a class of ours may have their name
        if base not in seen and base not in ("Protocol", "Generic"):
            for parent in classes.get(base, []):
                members |= _with_bases(parent, classes, seen | {base})
    return members


def _members(node: ast.ClassDef) -> set[str]:
    """Return the names a class defines: methods, fields, and what its methods assign to `self`."""
    names: set[str] = set()
    for one in ast.walk(node):
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
    return names - {"__init__"}


# --- Private APIs of other distributions ------------------------------------------------------------------------------------


def _private_apis(trees: Mapping[str, ast.Module], texts: Mapping[str, str]) -> Iterator[str]:
    own = {Path(path).parts[0] for path in trees}
    for path, tree in trees.items():
        found: set[tuple[int, str]] = set()
        foreign: set[str] = set()
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom(module=str() as module, level=0, names=names) if (
                    module.partition(".")[0] not in own
                ):
                    foreign |= {alias.asname or alias.name for alias in names}
                    found |= {
                        (node.lineno, f"{module}.{one.name}")
                        for one in names
                        if _is_private(f"{module}.{one.name}")
                    }
                case ast.Import(names=names):
                    others = [alias for alias in names if alias.name.partition(".")[0] not in own]
                    foreign |= {alias.asname or alias.name.partition(".")[0] for alias in others}
                    found |= {(node.lineno, alias.name) for alias in others if _is_private(alias.name)}
        found.update(_reached(tree, foreign))
        lines = {line for line, _ in found}
        for number, line in enumerate(texts[path].splitlines(), 1):
            if number not in lines and _SUPPRESSED_PRIVATE.search(line):
                found.add((number, "suppressed SLF001"))
        yield from (f"{path}:{line} {name}" for line, name in found)


def _reached(tree: ast.AST, foreign: set[str]) -> Iterable[tuple[int, str]]:
    """Return private attributes of imported names, and those that a subclass of an imported class has from there."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in foreign and _is_private(attr):
                yield node.lineno, f"{name}.{attr}"
            case ast.ClassDef(bases=bases) if any(_root(base) in foreign for base in bases):
                own = _members(node)
                for one in ast.walk(node):
                    match one:
                        case ast.Attribute(value=ast.Name(id="self"), attr=attr) if (
                            _is_private(attr) and attr not in own
                        ):
                            yield one.lineno, f"self.{attr} of {ast.unparse(bases[0])}"


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_private(dotted: str) -> bool:
    # `_exit` is public: the documentation of Python's `os` describes it
    return dotted not in ("_exit", "os._exit") and any(
        part.startswith("_") and not part.startswith("__") for part in dotted.split(".")
    )
