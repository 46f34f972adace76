"""MCP servers on loopback: one that does as it should, in either era of the protocol, and one that does as a test says."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Literal

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sessions.tools.mcp_options import ServerOptions
from sessions.tools.mcp_server import McpServer, ReconnectTiming
from sessions.tools.tool_registry import ToolRegistry

Era = Literal["handshake", "modern"]
TEMPO = ReconnectTiming(first=0.02, longest=0.3, apart=0.02)
FORM = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
"""What a user is asked for."""


class _Quiet(uvicorn.Server):
    """Leaves signals to the test."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def listening(app: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """The address of an application that is served, on a free port or on a given one."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    listener = socket.create_server(("127.0.0.1", port))
    server = _Quiet(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.should_exit = server.force_exit = True
        await serving
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # as where a process dies
        listener.close()


class Shop:
    """A real server. `waiting`: calls that are inside; `left`: those that were cancelled there."""

    def __init__(self, era: Era) -> None:
        self.era = era
        self.waiting: asyncio.Queue[str] = asyncio.Queue()
        self.left: asyncio.Queue[str] = asyncio.Queue()
        self.release = asyncio.Event()
        self.heard: list[dict[str, str]] = []
        self.mcp = MCPServer("shop")
        read_only = ToolAnnotations(read_only_hint=True)
        self.mcp.add_tool(self.price, annotations=read_only)
        self.mcp.add_tool(self.order, annotations=ToolAnnotations(idempotent_hint=True))
        self.mcp.add_tool(self.wait)
        self.mcp.add_tool(self.fail)
        self.mcp.add_tool(self.count)
        self.mcp.add_tool(self.picture, structured_output=False)
        self.mcp.add_tool(self.who)
        self.mcp.add_tool(self.extend)

    def price(self, item: str, pieces: int = 1) -> int:
        """Say what something costs."""
        return len(item) * pieces

    def order(self, item: str) -> str:
        """Order something."""
        return f"{item} is ordered"

    async def wait(self, name: str) -> str:
        self.waiting.put_nowait(name)
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.left.put_nowait(name)
            raise
        return f"{name} waited"

    def fail(self) -> str:
        raise ToolError("The shelf is empty.")

    async def count(self, to: int, context: Context) -> str:
        for number in range(to):
            await context.report_progress(number + 1, to, f"number {number + 1}")
        self.waiting.put_nowait("counted")
        await self.release.wait()
        return f"counted to {to}"

    def picture(self) -> list[Any]:
        return ["Here it is:", Image(data=b"x" * 30, format="png")]

    def who(self, context: Context) -> str:
        meta = context.request_context.meta or {}
        return json.dumps({key: meta[key] for key in sorted(meta) if key.startswith("midstream/")})

    async def extend(self, name: str, context: Context) -> str:
        """Offer one more tool."""
        self.mcp.add_tool(self.order, name=name)
        if self.era == "modern":
            await context.notify_tools_changed()
        else:
            await context.session.send_tool_list_changed()
        return "extended"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note the headers. A server of the handshake's era knows no discovery."""
        request = Request(scope, receive)
        self.heard.append(dict(request.headers))
        if self.era == "handshake" and request.headers.get("mcp-method") == "server/discover":
            await Response(status_code=404)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    @asynccontextmanager
    async def served(self, port: int = 0) -> AsyncIterator[str]:
        """The address. A task of its own holds what the library wants to be ended where it was begun."""
        begun, over = asyncio.get_running_loop().create_future(), asyncio.Event()
        holding = asyncio.create_task(self._hold(port, begun, over))
        await asyncio.wait((holding, begun), return_when=asyncio.FIRST_COMPLETED)
        try:
            yield holding.result() if holding.done() else begun.result()
        finally:
            over.set()
            await holding

    async def _hold(self, port: int, begun: asyncio.Future[str], over: asyncio.Event) -> Any:
        self._app = self.mcp.streamable_http_app()
        async with self._app.router.lifespan_context(self._app), listening(self, port) as url:
            begun.set_result(url)
            await over.wait()


Answer = Callable[[dict[str, Any]], Awaitable[Any]]
"""Gives a result, or raises; gets the whole message."""


class Rogue:
    """A server of the handshake's era that answers each method as the test says. `got`: all messages, in their order."""

    def __init__(self, **answers: Answer) -> None:
        self.got: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.streams: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.answers: dict[str, Answer] = {
            "initialize": self._initialize,
            "tools_list": self._list,
            **answers,
        }
        self.tools: list[Any] = [tool_of("work")]
        self.open_stream: Callable[[Send], Coroutine[Any, Any, None]] | None = None
        self.headers: dict[str, str] = {}
        """Of the newest message."""

    async def _initialize(self, message: dict[str, Any]) -> Any:
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "rogue", "version": "1"},
        }

    async def _list(self, message: dict[str, Any]) -> Any:
        return {"tools": self.tools}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method == "GET":
            self.streams.put_nowait(dict(request.headers))
            if self.open_stream is None:
                await Response(status_code=405)(scope, receive, send)
            else:
                await send_while_connected(self.open_stream(send), receive)
            return
        if request.method == "DELETE":
            await Response(status_code=204)(scope, receive, send)
            return
        message = json.loads(await request.body())
        self.headers = dict(request.headers)
        self.got.put_nowait(message)
        answer = self.answers.get(message.get("method", "").replace("/", "_"))
        if "id" not in message or "method" not in message:
            await Response(status_code=202)(scope, receive, send)
        elif answer is None:
            await Response(status_code=404)(scope, receive, send)
        else:
            await self._answer(message, answer, scope, receive, send)

    async def _answer(
        self, message: dict[str, Any], answer: Answer, scope: Scope, receive: Receive, send: Send
    ) -> None:
        result = await answer(message)
        if callable(result):
            await send_while_connected(result(send), receive)
        else:
            body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
            headers = {"mcp-session-id": "s1"} if message["method"] == "initialize" else {}
            await JSONResponse(body, headers=headers)(scope, receive, send)

    async def message(self, method: str) -> dict[str, Any]:
        """The next message of a method."""
        while (found := await self.got.get()).get("method") != method:
            pass
        return found


async def send_while_connected(sending: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Sends until it is done, or until the client is gone: what is sent to nobody would go on without a pause."""
    answer = asyncio.create_task(sending)
    gone = asyncio.create_task(_gone(receive))
    await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
    for task in (answer, gone):
        task.cancel()
    await asyncio.wait((answer, gone))
    if not answer.cancelled():
        answer.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def start(send: Send, kind: str = "text/event-stream", **headers: str) -> None:
    """Begin an answer by hand."""
    lines = {"content-type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(name.encode(), value.encode()) for name, value in lines.items()],
        }
    )


async def part(send: Send, body: bytes | str, *, more: bool = True) -> None:
    written = body.encode() if isinstance(body, str) else body
    await send({"type": "http.response.body", "body": written, "more_body": more})
    await asyncio.sleep(0)  # who sends without an end lets others have their turn, too


def event(message: dict[str, Any], **fields: str) -> str:
    """A server-sent event."""
    lines = [f"{name}: {value}" for name, value in fields.items()]
    return "\n".join([*lines, f"data: {json.dumps({'jsonrpc': '2.0', **message})}", "", ""])


def progress_of(message: dict[str, Any], number: int) -> str:
    """An event that tells how far a call is."""
    token = message["params"]["_meta"]["progressToken"]
    return event({"method": "notifications/progress", "params": {"progressToken": token, "progress": number}})


def tool_of(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": {}}, **more}


def text_result(text: str, **more: Any) -> dict[str, Any]:
    """The result of a call."""
    return {"content": [{"type": "text", "text": text}], **more}


def options_of(url: str, **more: Any) -> ServerOptions:
    return ServerOptions(
        **{"name": "shop", "url": url, "tools": ("*",), "connect_s": 5.0, "call_s": 10.0} | more
    )


@asynccontextmanager
async def box_at(
    *options: ServerOptions, timing: ReconnectTiming = TEMPO, **more: Any
) -> AsyncIterator[ToolRegistry]:
    """A box of these servers, running."""
    async with AsyncExitStack() as stack:
        box = ToolRegistry([McpServer(one, {}, timing=timing, **more) for one in options])
        await stack.enter_async_context(box.running())
        yield box
