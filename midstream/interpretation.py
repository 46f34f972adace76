"""A live translation: its source grows, and its translation is read like any reply."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from midstream.errors import Refused
from midstream.reply import Reply, Server

Frame = dict[str, Any]


class Interpretation:
    """Iterate it for the translation, which is never revised. `reply` has what came so far.

    `say` adds to the source. Words end with a space: an unfinished word is not translated.
    """

    def __init__(self, server: Server, reply: Reply, source: str = "") -> None:
        """Begin with the reply, or continue one whose source is known."""
        self.reply = reply
        self.source = source
        self._server = server

    async def say(self, text: str, *, final: bool = False) -> Frame:
        """Add to the source; return the `source_ack` frame. A lost connection doubles nothing.

        Refused text is not part of the source, and may be sent again. Raises Refused, Disconnected.
        """
        ids = {"conversation_id": self.reply.accepted["conversation_id"], "turn_id": self.reply.turn_id}
        frame = {"type": "source", "off": len(self.source), "text": text, "final": final}
        before, self.source = self.source, self.source + text
        try:
            return await self._server.request(frame | ids)
        except Refused:
            self.source = before
            raise

    async def finish(self) -> Frame:
        """End the source, read the translation to its end, and return `done`. Raises Refused, Disconnected, ClientError."""
        await self.say("", final=True)
        return await self.reply.wait()

    async def cancel(self) -> Frame:
        """Stop it; what was read is kept. Return the `cancelled` frame."""
        return await self.reply.cancel()

    def __aiter__(self) -> AsyncIterator[str]:
        return self.reply.__aiter__()
