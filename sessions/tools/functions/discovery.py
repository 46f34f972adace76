"""Finds the operator's functions: entry points of installed distributions, and names of the form `module:function`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sessions.tools.functions.function_tool import FunctionTool
from sessions.tools.functions.signature import BadSignature

GROUP = "midstream.tools"


class InvalidToolFunction(Exception):
    """A function can't be found, or can't be a tool. The message tells the operator which one, and why."""


def discover_functions(named: Sequence[str]) -> list[FunctionTool]:
    """Return the tools of all entry points of the group, then the named ones. Raises InvalidToolFunction.

    An entry point, or a name, stands for a function or for a list of functions.
    """
    origins: dict[str, str] = {}
    tools: list[FunctionTool] = []
    for origin, value in (*_installed(), *_named(named)):
        for tool in _tools(origin, value):
            name = tool.tool.name
            if name in origins:
                raise InvalidToolFunction(f"{origins[name]} and {origin} both have a tool {name!r}.")
            origins[name] = origin
            tools.append(tool)
    return tools


def _installed() -> Iterator[tuple[str, object]]:
    """Yield what the entry points of the group stand for, each with a description of where it was found."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    for point in points:
        origin = f"The entry point {point.name} = {point.value} of {_distribution(point)}"
        yield origin, _loaded(origin, point.load)


def _named(names: Iterable[str]) -> Iterator[tuple[str, object]]:
    for name in names:
        module, colon, attribute = name.partition(":")
        if not (module and colon and attribute):
            raise InvalidToolFunction(f"{name!r} does not name a function; write module:function.")
        yield name, _loaded(name, lambda: getattr(import_module(module), attribute))  # noqa: B023 - called at once


def _loaded(origin: str, load: Callable[[], object]) -> object:
    try:
        return load()
    except (Exception, SystemExit) as error:  # whatever an operator's code raises stops the start
        raise InvalidToolFunction(f"{origin} can't be loaded: {type(error).__name__}: {error}") from error


def _tools(origin: str, value: Any) -> Iterator[FunctionTool]:
    functions = value if isinstance(value, list | tuple) else [value]
    for function in functions:
        if not callable(function) or isinstance(function, type):
            raise InvalidToolFunction(f"{origin} is a {type(function).__name__}, which is no function.")
        try:
            yield FunctionTool(function)
        except BadSignature as error:
            name = getattr(function, "__qualname__", type(function).__qualname__)
            raise InvalidToolFunction(f"{origin}: {name} can't be a tool: {error}.") from error


def _distribution(point: EntryPoint) -> str:
    return "no distribution" if point.dist is None else point.dist.name
