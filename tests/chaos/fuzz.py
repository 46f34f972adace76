"""Malformed input from many sockets at once: the log has no errors, memory stays flat, and other clients are served."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random

import msgspec

from tests.bench.report import Measured, at_most, none
from tests.chaos import gateway
from tests.chaos.memory import resident_bytes
from tests.chaos.minimal_websocket import CLOSE, PING, PONG, Dropped, MinimalWebSocket, Refused, framed
from tests.chaos.odd_input import WEBSOCKETS, WebSocketEndpoint, odd_frame, odd_handshake
from tests.chaos.scenario import Scenario
from tests.chaos.server_log import unhandled
from tests.server_process import ServerProcess, serving

GROWTH_PERCENT = at_most(5.0)
AT_ONCE = 16
A_MESSAGE = 15
"""Frames on one connection; after twenty bad ones in a minute the server would end it."""
CLIENTS = 32
WARM = 0.5
HUNG_S = 10.0
PATIENCE_S = 0.3
"""Seconds to wait for the answer to an odd handshake: an incomplete one never gets any."""
LAST = "the last one"

_Attack = Callable[[int, Random], Awaitable[str]]


def frames(scenario: Scenario) -> Sequence[Measured]:
    """Send odd frames on connections that said hello."""
    return _fuzz(scenario, "fuzz-frames", scenario.scale.frames, A_MESSAGE, _send_frames)


def handshakes(scenario: Scenario) -> Sequence[Measured]:
    """Send odd requests instead of a handshake."""
    return _fuzz(scenario, "fuzz-handshakes", scenario.scale.handshakes, 1, _send_handshake)


def _at(endpoint: WebSocketEndpoint, scenario: Scenario) -> Sequence[Measured]:
    """Send odd frames as a client of another WebSocket endpoint."""
    return _fuzz(scenario, endpoint.part, scenario.scale.frames, A_MESSAGE, partial(_send_at, endpoint))


ENDPOINTS = {endpoint.part: partial(_at, endpoint) for endpoint in WEBSOCKETS}


def _fuzz(scenario: Scenario, name: str, total: int, each: int, attack: _Attack) -> Sequence[Measured]:
    with serving(scenario.folder, gateway.UNHURRIED, command=gateway.command(gateway.Script())) as server:
        assert server.process is not None
        pid, draw, rounds = server.process.pid, scenario.draw(), -(-total // each)
        warm = int(rounds * WARM)
        outcomes = asyncio.run(_rounds(server, attack, warm, scenario, draw))
        before = resident_bytes(pid)
        outcomes += asyncio.run(_rounds(server, attack, rounds - warm, scenario, draw))
        growth = (resident_bytes(pid) / before - 1) * 100
        asyncio.run(_is_fine(server))
    wrong = none(f"{total} of {name}: errors in the log", sorted(unhandled(server.log)))
    readings = {outcome: float(count) for outcome, count in outcomes.most_common()}
    hung = Measured(label="left without an answer", value=float(outcomes["hung"]), target=at_most(0))
    grown = Measured(label="growth of memory", value=growth, unit="%", target=GROWTH_PERCENT)
    return [msgspec.structs.replace(wrong, readings=readings), hung, grown]


async def _rounds(
    server: ServerProcess, attack: _Attack, rounds: int, scenario: Scenario, draw: Random
) -> Counter[str]:
    """Attack so often, a few at a time; return how each attack ended."""
    seeds = iter([draw.getrandbits(64) for _ in range(rounds)])

    async def attacks() -> list[str]:
        return [await attack(server.port, Random(seed)) for seed in seeds]

    ended = await asyncio.gather(*(attacks() for _ in range(AT_ONCE)))
    await asyncio.sleep(scenario.scale.settle_s)
    return Counter(outcome for some in ended for outcome in some)


async def _send_frames(port: int, draw: Random) -> str:
    """Send odd frames, and wait until the server has read them all or ended the connection."""
    one = await MinimalWebSocket.connect(("127.0.0.1", port))
    try:
        async with asyncio.timeout(HUNG_S):
            await one.send_hello(client_id=f"client-{draw.randrange(CLIENTS)}")
            await one.write(b"".join(odd_frame(draw) for _ in range(A_MESSAGE)))
            await one.write(framed(json.dumps({"type": "ping", "t": LAST}).encode()))
            while (await one.get()).get("t") != LAST:
                pass
            return "stayed"
    except TimeoutError:
        return "hung"
    except Refused as refused:
        return f"closed {refused.code}"
    except Dropped:
        return "dropped"
    finally:
        one.close()


async def _send_at(endpoint: WebSocketEndpoint, port: int, draw: Random) -> str:
    """Do the same at an endpoint without a hello: a ping after all of them is answered once they were read."""
    one = await MinimalWebSocket.connect(("127.0.0.1", port))
    try:
        async with asyncio.timeout(HUNG_S):
            await one.handshake(path=endpoint.path)
            await one.write(b"".join(odd_frame(draw, endpoint.honest) for _ in range(A_MESSAGE)))
            await one.write(framed(LAST.encode(), opcode=PING))
            while True:
                opcode, payload = await one.read()
                if (opcode, payload) == (PONG, LAST.encode()):
                    return "stayed"
                if opcode == CLOSE:
                    return f"closed {int.from_bytes(payload[:2], 'big')}"
    except TimeoutError:
        return "hung"
    except Refused as refused:
        return f"refused {refused.code}"
    except Dropped:
        return "dropped"
    finally:
        one.close()


async def _send_handshake(port: int, draw: Random) -> str:
    one = await MinimalWebSocket.connect(("127.0.0.1", port))
    request, cut = odd_handshake(draw), draw.random() < 0.3
    place = draw.randrange(len(request)) if cut else len(request)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await one.write(request[:place])
            if cut:
                await asyncio.sleep(0)
                await one.write(request[place:])
            status, _ = await one.answer()
            return f"HTTP {status}"
    except TimeoutError:
        return "waits for more"
    except Dropped:
        return "dropped"
    finally:
        one.close()


async def _is_fine(server: ServerProcess) -> None:
    """Check that another client is served as usual. Raises Dropped, Refused, TimeoutError."""
    async with asyncio.timeout(HUNG_S):
        one = await MinimalWebSocket.connect(("127.0.0.1", server.port))
        await one.send_hello()
        await one.put(type="send", client_msg_id="m", content="Still there?")
        while (await one.get())["type"] != "done":
            pass
        one.close()
