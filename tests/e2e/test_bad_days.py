"""Parts die; turns end once, and what was accepted is kept: promises 1 and 13."""

from __future__ import annotations

import os
import signal

from tests.e2e.wire import assert_no_hole, has_text, is_end_of, text_of, wire
from tests.server_process import ServerProcess

LONG = "Count from 1 to 500."
GREEDY = {"temperature": 0}


async def test_the_engine_is_killed_in_the_middle_of_a_reply(
    own_server: ServerProcess, client_id: str
) -> None:
    """The turn ends once as interrupted, the socket stays, and the next message is answered."""
    async with wire(own_server.ws_url, client_id) as alice:
        accepted = await alice.say(LONG, params=GREEDY)
        await alice.until(has_text(accepted["turn_id"], 20))
        os.kill(own_server.engine_pid(), signal.SIGKILL)
        done = await alice.until(is_end_of(accepted["turn_id"]))
        _, after = await alice.chat("Hello!")
        history = await alice.history()

    assert done["reason"] == "interrupted"
    assert done["error"]["code"] == "engine_unavailable"
    assert after["reason"] == "stop"
    assert history[1]["content"] == text_of(alice.seen, accepted["turn_id"])
    assert history[1]["status"] == "interrupted"
    assert_no_hole(alice.seen)


async def test_an_engine_killed_before_the_first_token_costs_only_time(
    own_server: ServerProcess, client_id: str
) -> None:
    """Nothing was sent yet, so the turn is tried again, once, and says so."""
    engine = own_server.engine_pid()
    async with wire(own_server.ws_url, client_id) as alice:
        os.kill(engine, signal.SIGSTOP)  # it can't answer before it dies
        await alice.put(type="send", client_msg_id="m", content="What is 7 plus 8?")
        os.kill(engine, signal.SIGKILL)
        done = await alice.until("done")

    assert done["reason"] == "stop"


async def test_the_service_is_killed_in_the_middle_of_a_reply(
    own_server: ServerProcess, client_id: str
) -> None:
    """After a restart the reply is there as far as it was written, and its turn has an end."""
    async with wire(own_server.ws_url, client_id) as alice:
        accepted = await alice.say(LONG, params=GREEDY, client_msg_id="once")
        await alice.until(has_text(accepted["turn_id"], 40))
        own_server.kill()
    own_server.start()
    async with wire(own_server.ws_url, client_id) as again:
        history = await again.history()
        repeated = await again.say(LONG, client_msg_id="once")
        done = await again.until("done")
        _, after = await again.chat("Hello!")

    seen = "".join(frame["text"] for frame in alice.seen if frame["type"] == "delta")
    assert history[-1]["status"] == "interrupted"
    assert history[-1]["content"].startswith(seen)
    assert repeated["duplicate"]
    assert done["reason"] == "interrupted"
    assert after["reason"] == "stop"


async def test_the_service_is_stopped_in_the_middle_of_a_reply(
    own_server: ServerProcess, client_id: str
) -> None:
    """It says goodbye first, ends the reply in its time, and leaves with exit code 0."""
    async with wire(own_server.ws_url, client_id) as alice:
        accepted = await alice.say(LONG, params=GREEDY)
        await alice.until(has_text(accepted["turn_id"], 20))
        assert own_server.process is not None
        own_server.process.send_signal(signal.SIGTERM)
        await alice.until("goaway")
        done = await alice.until("done")
        await alice.socket.wait_closed()
        assert alice.socket.close_code == 1012
    assert own_server.process.wait(timeout=30) == 0
    own_server.start()
    async with wire(own_server.ws_url, client_id) as again:
        history = await again.history()

    assert done["reason"] in ("interrupted", "stop")
    assert history[-1]["content"] == text_of(alice.seen, accepted["turn_id"])
