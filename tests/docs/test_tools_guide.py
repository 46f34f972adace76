"""The code of the guide to tools, as it stands there: a module of functions, a file of servers, and an MCP server."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from app.parts import tool_box_of
from app.settings import Settings
from sessions.tools import calls, function_tools, mcp_options, mcp_server, tool_registry
from sessions.tools.function_tools import ToolDeclaration
from sessions.tools.tool_registry import Approval, CallContext, ToolFailed
from tests.docs.documents import ROOT, snippets
from tests.sessions.tools.tool_calls import call_of

GUIDE = ROOT / "docs" / "tools.md"
FUNCTIONS, SERVER = snippets(GUIDE, "python")
PACKAGE, SERVERS = snippets(GUIDE, "toml")
WITH_FUNCTIONS, WITH_SERVERS = snippets(GUIDE, "sh")


def environment(command: str) -> dict[str, str]:
    """The settings that a line of the guide sets before the command."""
    words = [word for word in shlex.split(command) if "=" in word]
    return {name: value for name, _, value in (word.partition("=") for word in words)}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's functions, importable."""
    (tmp_path / "shop_tools.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_tools", raising=False)


async def test_the_functions_are_tools(module: None) -> None:
    given = environment(WITH_FUNCTIONS)
    box = tool_box_of(Settings.read({"MIDSTREAM_TOOLS": given["MIDSTREAM_TOOLS"]}))
    assert [(tool.name, tool.approval) for tool in box.offered()] == [
        ("order", Approval.ALWAYS),
        ("stock", Approval.NEVER),
    ]
    assert await box.run("stock", {"item": "tea"}, call_of()) == "12"
    with pytest.raises(ToolFailed, match=r"There is no item 'milk'\. There are: tea, coffee"):
        await box.run("stock", {"item": "milk"}, call_of())
    assert await box.run("order", {"item": "tea", "pieces": 2}, call_of()) == "2 tea, slow: ordered"


async def test_the_package_brings_them_along(module: None, tmp_path: Path) -> None:
    points = msgspec.toml.decode(PACKAGE)["project"]["entry-points"]["midstream.tools"]
    facts = tmp_path / "shop-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (facts / "entry_points.txt").write_text("\n".join(["[midstream.tools]", *lines]))
    assert [tool.name for tool in tool_box_of(Settings.read({})).offered()] == ["order", "stock"]


@asynccontextmanager
async def shop(folder: Path) -> AsyncIterator[int]:
    """The guide's server in a process of its own, on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    program = folder / "shop.py"
    program.write_text(SERVER.replace("9000", str(port)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    assert process.stderr is not None
    try:
        async for line in process.stderr:
            if b"running on" in line:
                break
        yield port
    finally:
        process.kill()
        await process.wait()


async def test_the_server_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = environment(WITH_SERVERS)
    monkeypatch.setenv("SHOP_AUTH", given["SHOP_AUTH"])
    async with shop(tmp_path) as port:
        path = tmp_path / given["MIDSTREAM_CONFIG"]
        path.write_text(SERVERS.replace("9000", str(port)))
        box = tool_box_of(Settings.read({"MIDSTREAM_CONFIG": str(path)}))
        async with box.running():
            assert [(tool.name, tool.approval) for tool in box.offered()] == [
                ("shop_buy", Approval.ALWAYS),
                ("shop_price", Approval.NEVER),
            ]
            assert await box.run("shop_price", {"item": "tea"}, call_of()) == "tea costs 3 Fr."


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of the first table behind some words, by the first cell."""
    table = GUIDE.read_text().partition(heading)[2].partition("\n| ")[2].partition("\n\n")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {line[0]: line[1:] for line in lines}


def in_code(cells: list[str] | dict[str, list[str]]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`(?:await )?(\w+)", cell)]


def test_every_option_is_in_the_guide() -> None:
    declared = [field.name for field in msgspec.structs.fields(ToolDeclaration)]
    assert sorted(in_code(rows("`@tool(…)` sets"))) == sorted(declared)
    assert sorted(in_code(rows("if __name__"))) == sorted(mcp_options.ServerOptions.__struct_fields__)
    assert sorted(in_code(rows("Midstream itself passes a parameter"))) == sorted(
        CallContext.__struct_fields__
    )


BOUNDS: dict[str, list[float]] = {
    "functions that run at once": [function_tools.THREADS, function_tools.WAITING],
    "functions that run for one owner": [function_tools.OWNERS_THREADS, function_tools.OWNERS_WAITING],
    "running calls to one MCP server": [mcp_server.CALLS, mcp_server.OWNERS_CALLS],
    "waiting calls of functions, or to one MCP server": [calls.MOST_WAITING],
    "tools of one server": [mcp_options.MOST_TOOLS, mcp_options.LIST_BYTES // 1024],
    "a tool's description": [mcp_options.DESCRIPTION_BYTES // 1024],
    "a tool's schema": [mcp_options.SCHEMA_BYTES // 1024],
    "a server's tool list": [mcp_server.MOST_LISTED, mcp_server.MOST_PAGES],
    "one message of a server": [],
    "all messages for one call": [mcp_server.ANSWERS_TIMES],
    "a server's data": [
        mcp_server.BURST_TIMES,
        mcp_server.RATE // mcp_server.EVENT_COSTS,
        mcp_server.RATE // 1024,
    ],
    "reads of a server's tool list": [mcp_server.ReconnectTiming().apart],
    "progress": [1 / calls.INTERVAL_S, calls.PROGRESS_CHARS],
    "a tool's failure message": [tool_registry.REASON_BYTES // 1024],
}


def test_the_bounds_of_the_guide_are_those_of_the_code() -> None:
    reported = {
        what: [int(number) for number in re.findall(r"\d+", cells[0].replace(",", ""))]
        for what, cells in rows("## Bounds").items()
    }
    assert reported == BOUNDS
