"""Processes die; each turn ends once, and accepted messages are kept: promises 1 and 13."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from tests.e2e.websocket_client import Frame, assert_no_hole, connect_client, has_text, is_end_of, text_of
from tests.server_process import ServerProcess

LONG = "Count from 1 to 500."
GREEDY = {"temperature": 0}


async def test_the_engine_is_killed_in_the_middle_of_a_reply_and_before_the_first_token_of_another(
    own_server: ServerProcess, client_id: str
) -> None:
    """Alice's turn ends once as interrupted, her socket stays, and her next message is answered. Bob's only takes longer.

    Nothing of his reply had been sent, so it is tried again.
    """
    engine = own_server.engine_pid()
    async with (
        connect_client(own_server.ws_url, client_id) as alice,
        connect_client(own_server.ws_url, f"{client_id}-bob") as bob,
    ):
        accepted = await alice.send_message(LONG, params=GREEDY)
        await alice.until(has_text(accepted["turn_id"], 20))
        os.kill(engine, signal.SIGSTOP)  # it can't answer Bob before it dies
        await bob.put(type="send", client_msg_id="m", content="What is 7 plus 8?")
        os.kill(engine, signal.SIGKILL)
        done = await alice.until(is_end_of(accepted["turn_id"]))
        _, after = await alice.chat("Hello!")
        history = await alice.history()
        late = await bob.until("done")

    assert done["reason"] == "interrupted"
    assert done["error"]["code"] == "engine_unavailable"
    assert after["reason"] == "stop"
    assert history[1]["content"] == text_of(alice.seen, accepted["turn_id"])
    assert history[1]["status"] == "interrupted"
    assert_no_hole(alice.seen)
    assert late["reason"] == "stop"


async def test_the_service_is_killed_in_the_middle_of_a_reply(
    own_server: ServerProcess, client_id: str
) -> None:
    """After a restart the reply is stored as far as it was written, and its turn has an end."""
    async with connect_client(own_server.ws_url, client_id) as alice:
        accepted = await alice.send_message(LONG, params=GREEDY, client_msg_id="once")
        await alice.until(has_text(accepted["turn_id"], 40))
        own_server.kill()
    own_server.start()
    async with connect_client(own_server.ws_url, client_id) as again:
        history = await again.history()
        repeated = await again.send_message(LONG, client_msg_id="once")
        done = await again.until("done")
        _, after = await again.chat("Hello!")

    seen = "".join(frame["text"] for frame in alice.seen if frame["type"] == "delta")
    assert history[-1]["status"] == "interrupted"
    assert history[-1]["content"].startswith(seen)
    assert repeated["duplicate"]
    assert done["reason"] == "interrupted"
    assert after["reason"] == "stop"


async def test_the_service_is_stopped_in_the_middle_of_a_reply_and_started_again(
    own_server: ServerProcess, client_id: str
) -> None:
    """It says goodbye first, ends the reply in its time, and exits with code 0; the restart loses nothing."""
    branched = await Branched.made(own_server, f"{client_id}-bob")
    old_log = own_server.log.read_bytes()
    async with connect_client(own_server.ws_url, client_id) as alice:
        accepted = await alice.send_message(LONG, params=GREEDY)
        await alice.until(has_text(accepted["turn_id"], 20))
        assert own_server.process is not None
        own_server.process.send_signal(signal.SIGTERM)
        await alice.until("goaway")
        done = await alice.until("done")
        await alice.socket.wait_closed()
        assert alice.socket.close_code == 1012
    assert own_server.process.wait(timeout=30) == 0
    assert b"Traceback" not in own_server.log.read_bytes().removeprefix(old_log)
    own_server.start()
    async with connect_client(own_server.ws_url, client_id) as again:
        history = await again.history()

    assert done["reason"] in ("interrupted", "stop")
    assert history[-1]["content"] == text_of(alice.seen, accepted["turn_id"])
    await branched.is_there(own_server, f"{client_id}-bob")


class Branched(NamedTuple):
    """A conversation whose only message was edited, as its client saw it then."""

    text: str
    message_id: str
    active: list[Frame]

    @classmethod
    async def made(cls, server: ServerProcess, client_id: str) -> Branched:
        """Make one. The question has the id `once`; its reply is no longer the active one."""
        async with connect_client(server.ws_url, client_id) as bob:
            text, done = await bob.chat("What is 7 plus 8?", params=GREEDY, client_msg_id="once")
            question, _ = await bob.history()
            await bob.chat("Hello!", type="edit", message_id=question["message_id"])
            return cls(text, done["message_id"], await bob.history())

    async def is_there(self, server: ServerProcess, client_id: str) -> None:
        """Check both branches: either can be made active, and a repeated message only repeats its answer."""
        async with connect_client(server.ws_url, client_id) as bob:
            active = await bob.history()
            before = await bob.history(leaf=self.message_id)
            repeated, _ = await bob.chat("What is 7 plus 8?", client_msg_id="once")
            after = await bob.history(leaf=self.message_id)

        assert active == self.active
        assert [message["content"] for message in before] == ["What is 7 plus 8?", self.text]
        assert before[0]["siblings"] == active[0]["siblings"]
        assert (repeated, after) == (self.text, before)
