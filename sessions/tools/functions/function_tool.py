"""One function as a tool: its description for the model, and how a call of it runs."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from sessions.tools.functions.declaration import declaration_of
from sessions.tools.functions.docstring import parse_docstring
from sessions.tools.functions.signature import BadSignature, Signature
from sessions.tools.live_call import LiveCall
from sessions.tools.server_tool import NAME, ServerTool


class FunctionTool:
    """A function, its parameters, and how it is offered. `timeout_s`: None: as the settings say."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises BadSignature where the function can't be a tool."""
        declared = declaration_of(function)
        doc = parse_docstring(inspect.getdoc(function))
        name = str(declared.name or getattr(function, "__name__", ""))
        if re.fullmatch(NAME, name) is None:
            raise BadSignature(f"its name {name!r} is not 1 to 64 of A-Z, a-z, 0-9, _ and -")
        self._function = function
        self._signature = Signature(function, doc.parameters)
        self.waits = _is_async(function)
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
        if self.waits:
            return _text(await self._function(**given))
        return await _in_thread(lambda: _text(self._function(**given)), call)


def _text(result: object) -> str:
    """Return a result as text: a text as it is, anything else as JSON. Raises TypeError if it can't be JSON."""
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
