"""Several messages at once reach the socket as one write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from connections.websocket_endpoint import MultilineTransport, WebSocketTransport


class RecordingSocket:
    """A socket that notes what is written to it, write by write."""

    def __init__(self) -> None:
        self.writes: list[list[bytes]] = []
        self.receive = self.is_writable = self.writable = self.charge = self.request = self.close = (
            self.write_binary
        ) = None

    def write_all(self, texts: Iterable[bytes]) -> None:
        self.writes.append(list(texts))


def test_lines_are_messages_of_one_write_and_nothing_is_none() -> None:
    wire = RecordingSocket()
    lines = MultilineTransport(cast("WebSocketTransport", wire))
    for text in (b'{"a":"\\n"}\n{"b":1}', b"", b"{}"):
        lines.write(text)
    assert wire.writes == [[b'{"a":"\\n"}', b'{"b":1}'], [b"{}"]]
