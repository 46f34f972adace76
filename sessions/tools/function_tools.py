"""The operator's Python functions as tools: how they are declared, discovered, described by signature and docstring, and called."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import threading
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar, overload

import msgspec

from sessions.limits.slots import FairSlots
from sessions.tools.calls import Calls, LiveCall
from sessions.tools.tool_registry import (
    NAME,
    RESULT_BYTES,
    Approval,
    CallContext,
    ServerTool,
    ToolFailed,
)

GROUP = "midstream.tools"
LIMIT_S = 30.0
"""The timeout of a call, unless the function or the operator sets another."""
THREADS = 32
OWNERS_THREADS = 8
"""Threads of one owner; a thread counts until its function returns, even if nobody waits for it."""
WAITING = 256
OWNERS_WAITING = 16
"""Calls of one owner that run on the event loop; `WAITING`: those of all owners."""
_MARK = "__midstream_tool__"
_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Return|Yields|Raises|Examples?|Notes?):\s*$", re.MULTILINE
)
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_PARAMETERS = {"Args", "Arguments", "Parameters"}
_PLAIN = (type(None), bool, int, float, str)
_PREFIX = "p_"  # a parameter may have the name of a struct's own attribute
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Literal["never", "always"] = "never",
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Callable[[Function], Function]: ...


def tool(function: Any = None, /, *, approval: Literal["never", "always"] = "never", **options: Any) -> Any:
    """Declare a function as a tool. An undeclared function becomes a tool with these defaults.

    `name`, `description`: instead of the function's own. `approval`: whether a user has to allow each call.
    `idempotent`: a call with an unknown outcome may be run again. `timeout_s`: seconds that a call may take.
    """
    declared = ToolDeclaration(approval=Approval(approval), **options)

    def declare(one: Function) -> Function:
        setattr(one, _MARK, declared)
        return one

    return declare if function is None else declare(function)


class ToolDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a declaration. None: the function or the settings decide."""

    name: str | None = None
    description: str | None = None
    approval: Approval = Approval.NEVER
    idempotent: bool = False
    timeout_s: float | None = None


class FunctionTools:
    """A source of tools that never change. `limit_s`: the timeout of a call; `result_bytes`: the most bytes of its result."""

    def __init__(
        self,
        tools: Sequence[FunctionTool],
        *,
        limit_s: float = LIMIT_S,
        result_bytes: int = RESULT_BYTES,
        threads: FairSlots | None = None,
    ) -> None:
        self._tools = {one.tool.name: one for one in tools}
        self._offered = tuple(self._tools[name].tool for name in sorted(self._tools))
        self._limit_s = limit_s
        self._in_threads = Calls(
            threads or FairSlots(THREADS, each=OWNERS_THREADS), result_bytes=result_bytes
        )
        self._on_loop = Calls(FairSlots(WAITING, each=OWNERS_WAITING), result_bytes=result_bytes)

    def offered(self) -> tuple[ServerTool, ...]:
        """Return the tools, sorted by name."""
        return self._offered

    async def run(self, name: str, arguments: dict[str, Any], context: CallContext) -> str:
        """Run one call. Raises ToolFailed."""
        tool = self._tools[name]
        calls = self._on_loop if tool.is_async else self._in_threads
        return await calls.run(
            name,
            lambda call: tool.run(arguments, call),
            context,
            limit_s=self._limit_s if tool.timeout_s is None else tool.timeout_s,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while the context lasts. At its end calls are cancelled; threads that do not end are left behind."""
        try:
            yield
        finally:
            await self._on_loop.end()
            await self._in_threads.end()


def discover_functions(named: Sequence[str]) -> list[FunctionTool]:
    """Return the tools of all entry points in `GROUP`, then those of the named functions. Raises InvalidToolFunction.

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


class InvalidToolFunction(Exception):
    """A function can't be found, or can't be a tool. The message says which one, and why."""


def _installed() -> Iterator[tuple[str, object]]:
    """Yield the objects of the entry points in `GROUP`, each with a description of its origin."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    for point in points:
        named = "no distribution" if point.dist is None else point.dist.name
        origin = f"The entry point {point.name} = {point.value} of {named}"
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
    except (Exception, SystemExit) as error:  # whatever an operator's code raises prevents the start
        raise InvalidToolFunction(f"{origin} can't be loaded: {type(error).__name__}: {error}") from error


def _tools(origin: str, value: Any) -> Iterator[FunctionTool]:
    functions = value if isinstance(value, list | tuple) else [value]
    for function in functions:
        if not callable(function) or isinstance(function, type):
            raise InvalidToolFunction(f"{origin} is not a function; its type is {type(function).__name__}.")
        try:
            yield FunctionTool(function)
        except BadSignature as error:
            name = getattr(function, "__qualname__", type(function).__qualname__)
            raise InvalidToolFunction(f"{origin}: {name} can't be a tool: {error}.") from error


class FunctionTool:
    """A function, its parameters, and how it is offered. `timeout_s`: None if the settings decide."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises BadSignature if the function can't be a tool."""
        declared: ToolDeclaration = getattr(function, _MARK, None) or ToolDeclaration()
        doc = parse_docstring(inspect.getdoc(function))
        name = str(declared.name or getattr(function, "__name__", ""))
        if re.fullmatch(NAME, name) is None:
            raise BadSignature(f"its name {name!r} is not 1 to 64 of A-Z, a-z, 0-9, _ and -")
        self._function = function
        self._signature = Signature(function, doc.parameters)
        self.is_async = _is_async(function)
        self.timeout_s = declared.timeout_s
        self.tool = ServerTool(
            name=name,
            description=doc.description if declared.description is None else declared.description,
            parameters=self._signature.schema,
            approval=declared.approval,
            idempotent=declared.idempotent,
        )

    async def run(self, arguments: dict[str, Any], call: LiveCall) -> str:
        """Run the function to its end, in a thread unless it is a coroutine function.

        Raises ToolFailed if the arguments do not fit, and whatever the function raises.
        """
        given = self._signature.bound(arguments, call.context)
        if self.is_async:
            return _text(await self._function(**given))
        return await _in_thread(lambda: _text(self._function(**given)), call)


def _text(result: object) -> str:
    """Return a result as text: a string as it is, anything else as JSON. Raises TypeError if JSON can't express it."""
    if isinstance(result, str):
        return result
    return "The tool is done." if result is None else msgspec.json.encode(result).decode()


def _is_async(function: Callable[..., Any]) -> bool:
    inner = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(inspect.unwrap(inner))


async def _in_thread(work: Callable[[], str], call: LiveCall) -> str:
    """Do the work in a thread, which holds the call's place until it ends: nobody can end it from outside.

    It is a daemon thread, so a function that never returns does not keep the server from stopping.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str | BaseException] = loop.create_future()
    carried = contextvars.copy_context()

    def settle(outcome: str | BaseException) -> None:
        call.slot.release()
        if not ended.done():
            ended.set_result(outcome)

    def body() -> None:
        outcome = carried.run(_outcome, work)
        with suppress(RuntimeError):  # the loop has ended meanwhile: nobody waits
            loop.call_soon_threadsafe(settle, outcome)

    call.slot.hold()
    threading.Thread(target=body, name="tool", daemon=True).start()
    outcome = await ended
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _outcome(work: Callable[[], str]) -> str | BaseException:
    """Return what the work returns or raises: the boundary of its thread."""
    try:
        return work()
    except BaseException as raised:  # noqa: BLE001 - the waiting caller raises it again
        return raised


class Signature:
    """The parameters of a function. The server fills in a parameter of type `CallContext`, which the model does not see."""

    def __init__(self, function: Callable[..., Any], described: Mapping[str, str]) -> None:
        """Raises BadSignature."""
        hints = _hints(function)
        parameters = inspect.signature(function).parameters.values()
        self._context = next((one.name for one in parameters if hints.get(one.name) is CallContext), None)
        shown = [one for one in parameters if one.name != self._context]
        fields = [_field(one, hints) for one in shown]
        self._names = [one.name for one in shown]
        self._arguments = msgspec.defstruct(
            "Arguments",
            fields,
            rename=lambda field: field.removeprefix(_PREFIX),
            forbid_unknown_fields=True,
            kw_only=True,
        )
        self.schema = _schema(self._arguments, described)
        """The JSON Schema of the arguments, as text."""

    def bound(self, arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
        """Return the keyword arguments of a call. Raises ToolFailed, which says what does not fit."""
        try:
            found = msgspec.convert(arguments, self._arguments, str_keys=True)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ToolFailed(f"The arguments do not fit: {error}.") from None
        given = {name: getattr(found, f"{_PREFIX}{name}") for name in self._names}
        return given if self._context is None else given | {self._context: context}


class BadSignature(TypeError):
    """A function can't be a tool. The message names the parameter that prevents it."""


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hints; those written as strings are resolved. Raises BadSignature."""
    try:
        return typing.get_type_hints(
            function if inspect.isroutine(function) else type(function).__call__, include_extras=True
        )
    except Exception as error:  # a hint may be any expression
        raise BadSignature(f"its type hints can't be read: {type(error).__name__}: {error}") from error


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """Return a parameter as a field of the struct. Raises BadSignature."""
    if parameter.kind not in _NAMED:
        raise BadSignature(f"parameter {parameter.name} can't be passed by name, as a tool's arguments are")
    if parameter.name not in hints:
        raise BadSignature(f"parameter {parameter.name} has no type hint")
    hint = hints[parameter.name] | None if parameter.default is None else hints[parameter.name]
    _check(parameter.name, hint)
    return (f"{_PREFIX}{parameter.name}", hint, _default(parameter.default))


def _default(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return msgspec.NODEFAULT
    return default if isinstance(default, _PLAIN) else msgspec.field(default_factory=lambda: default)


def _check(name: str, hint: Any) -> None:
    """Raise BadSignature if a type has no JSON Schema."""
    try:
        msgspec.json.schema_components((hint,))
    except (TypeError, NameError, ValueError) as error:
        why = str(error).splitlines()[-1]
        raise BadSignature(f"parameter {name} has a type that JSON can't express: {why}") from error


def _schema(arguments: type[msgspec.Struct], described: Mapping[str, str]) -> str:
    """Return the struct's JSON Schema, with its own definition at the top level."""
    (top,), parts = msgspec.json.schema_components((arguments,), ref_template="#/$defs/{name}")
    schema = parts.pop(top["$ref"].removeprefix("#/$defs/"))
    schema.pop("title", None)
    for name, text in described.items():
        if text and name in schema["properties"]:
            schema["properties"][name] = {"description": text, **schema["properties"][name]}
    if parts:
        schema["$defs"] = parts
    return msgspec.json.encode(schema).decode()


class ParsedDocstring(msgspec.Struct, frozen=True):
    """`description`: the text above the sections; `parameters`: descriptions by name."""

    description: str
    parameters: dict[str, str]


def parse_docstring(docstring: str | None) -> ParsedDocstring:
    """Parse a docstring in Google's style; any other is a description as a whole."""
    description, *sections = _SECTION.split(inspect.cleandoc(docstring or ""))
    parameters: dict[str, str] = {}
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title in _PARAMETERS:
            parameters |= dict(_entries(body))
    return ParsedDocstring(description.strip(), parameters)


def _entries(body: str) -> Iterator[tuple[str, str]]:
    """Yield the entries of a section. Each begins at the section's own indentation, and may continue below it."""
    block = inspect.cleandoc(f"\n{body.strip(chr(10))}")
    name, words = "", [""]
    for line in block.splitlines():
        found = None if line.startswith((" ", "\t")) else _ENTRY.match(line)
        if found is None:
            words.append(line.strip())
            continue
        if name:
            yield name, " ".join(words).strip()
        name, words = found[1], [found[2]]
    if name:
        yield name, " ".join(words).strip()
