"""A live translation: its source grows here, its translation is read as any reply."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from midstream.errors import Refused
from midstream.reply import Reply, Server

Frame = dict[str, Any]


class Interpretation:
    """Iterating gives the translation as it is told; nothing of it is ever revised. `reply` has what came so far.

    What `say` is given is the source. Words end with a blank: one that may go on is not translated.
    """

    def __init__(self, server: Server, reply: Reply, source: str = "") -> None:
        """Begin with the reply, or go on with one whose source is known."""
        self.reply = reply
        self.source = source
        self._server = server

    async def say(self, text: str, *, final: bool = False) -> Frame:
        """Lets the source grow; gives the `source_ack` frame. A lost connection takes nothing twice.

        What was refused is no part of the source; where that is worth another try, the same may be said again. Raises
        Refused, Disconnected.
        """
        place = {"conversation_id": self.reply.accepted["conversation_id"], "turn_id": self.reply.turn_id}
        said = {"type": "source", "off": len(self.source), "text": text, "final": final}
        before, self.source = self.source, self.source + text
        try:
            return await self._server.request(said | place)
        except Refused:
            self.source = before
            raise

    async def finish(self) -> Frame:
        """Ends the source, reads the translation to its end, and gives `done`. Raises Refused, Disconnected, ClientError."""
        await self.say("", final=True)
        return await self.reply.wait()

    async def cancel(self) -> Frame:
        """Stops it; what was read stays. Gives the `cancelled` frame."""
        return await self.reply.cancel()

    def __aiter__(self) -> AsyncIterator[str]:
        return self.reply.__aiter__()
