"""What a client asks for when it sends a message."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.messages import Params
from sessions.turn.positions import Behind, Place

OnBusy = Literal["reject", "enqueue", "interrupt", "rollback"]
OnDisconnect = Literal["cancel", "continue"]


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """A user's message, or the wish for another reply to one (`content` is empty then), valid in itself.

    `grace_s`: seconds that its turn goes on while nobody is attached to its conversation; `client_id`: of the client that
    sends it, whom its tokens count for; `group`: the key or the address that it came by, for which it is counted besides.
    """

    client_msg_id: str
    conversation_id: str
    content: str
    place: Place = Behind()
    on_busy: OnBusy = "reject"
    on_disconnect: OnDisconnect = "cancel"
    grace_s: float = 0
    ref: str | None = None
    group: str = ""
    client_id: str = ""


class Generation(msgspec.Struct, frozen=True):
    """How the reply is made. `system` unset: the conversation's; empty: none of its own from now on.

    `model`: which one is asked, by its name or an alias, from now on; unset: the one that was asked before.
    """

    params: Params = Params()
    system: str | None = None
    model: str | None = None
