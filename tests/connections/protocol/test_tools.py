"""Which tools a turn may call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from connections.protocol import frames
from connections.protocol.errors import BadParams
from connections.protocol.params import offered_tools
from sessions.tools.tool_registry import MOST_KNOWN, Approval, CallContext, ServerTool, ToolRegistry


class Source:
    """Tools that come and go."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def offered(self) -> tuple[ServerTool, ...]:
        return tuple(
            ServerTool(
                name=name, description=name, parameters="{}", approval=Approval.NEVER, idempotent=False
            )
            for name in self.names
        )

    async def run(self, name: str, arguments: dict[str, Any], context: CallContext) -> str:
        raise AssertionError(f"{name} {arguments} {context}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield


def send_with_tools(*names: str, **more: Any) -> frames.Send:
    tools = [{"name": name, "where": "server"} for name in names]
    return msgspec.convert(
        {"type": "send", "client_msg_id": "m", "content": "Hi", "tools": tools} | more, frames.Send
    )


def names(frame: frames.Send, box: ToolRegistry) -> list[str]:
    return [one.tool.name for one in offered_tools(frame, box)]


def test_a_tool_that_has_gone_is_left_out_and_one_that_never_was_is_refused() -> None:
    source = Source("clock", "dice")
    box = ToolRegistry([source])
    assert names(send_with_tools("clock", "dice"), box) == ["clock", "dice"]
    source.names = ("dice",)
    assert names(send_with_tools("clock", "dice"), box) == ["dice"]
    with pytest.raises(BadParams, match="names an unknown tool"):
        names(send_with_tools("moon"), box)


def test_a_tool_that_has_gone_and_has_to_be_called_is_refused() -> None:
    source = Source("clock")
    box = ToolRegistry([source])
    assert names(send_with_tools("clock", tool_choice="clock"), box) == ["clock"]
    source.names = ()
    for choice in ("clock", "required"):
        with pytest.raises(BadParams):
            names(send_with_tools("clock", tool_choice=choice), box)


def test_a_source_that_has_other_tools_again_and_again_is_forgotten() -> None:
    source = Source()
    box = ToolRegistry([source])
    for start in range(0, 3 * MOST_KNOWN, 512):
        source.names = tuple(f"tool{number}" for number in range(start, start + 512))
        box.offered()
    assert len(box._known) <= MOST_KNOWN + 512
