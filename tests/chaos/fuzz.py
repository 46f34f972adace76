"""Malformed input from many sockets at once: the log has no errors, memory stays flat, and other clients are served."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from random import Random

import msgspec

from tests.bench.report import Measured, at_most, none
from tests.chaos import gateway
from tests.chaos.memory import resident_bytes
from tests.chaos.minimal_websocket import CLOSE, PING, Dropped, MinimalWebSocket, Refused, framed
from tests.chaos.odd_input import WEBSOCKETS, WebSocketEndpoint, odd_frame, odd_handshake
from tests.chaos.scenario import Scenario
from tests.chaos.server_log import unhandled
from tests.server_process import serving

GROWTH_PERCENT = at_most(5.0)
AT_ONCE = 16
A_MESSAGE = 15
"""Frames on one connection; after twenty bad ones in a minute the server would end it."""
CLIENTS = 32
HUNG_S = 10.0
PATIENCE_S = 0.3
"""Seconds to wait for the answer to an odd handshake: an incomplete one never gets any."""
LAST = b"the last one"

_Send = Callable[[MinimalWebSocket, Random], Awaitable[str]]


async def frames(scenario: Scenario, endpoint: WebSocketEndpoint | None = None) -> Sequence[Measured]:
    """Send odd frames on connections that said hello, or as a client of another WebSocket endpoint."""
    name = endpoint.part if endpoint else "fuzz-frames"
    send = partial(_send_frames, endpoint)
    return await _fuzz(scenario, name, scenario.scale.frames, send, each=A_MESSAGE, within_s=HUNG_S)


async def handshakes(scenario: Scenario) -> Sequence[Measured]:
    """Send odd requests instead of a handshake."""
    total = scenario.scale.handshakes
    return await _fuzz(scenario, "fuzz-handshakes", total, _send_handshake, each=1, within_s=PATIENCE_S)


ENDPOINTS = {endpoint.part: partial(frames, endpoint=endpoint) for endpoint in WEBSOCKETS}


async def _fuzz(
    scenario: Scenario, name: str, total: int, send: _Send, *, each: int, within_s: float
) -> Sequence[Measured]:
    outcomes = Counter[str]()
    with serving(scenario.folder, gateway.UNHURRIED, command=gateway.command(gateway.Script())) as server:
        assert server.process is not None
        pid, draw, sizes = server.process.pid, scenario.draw(), []
        for _ in ("warm", "measured"):
            seeds = iter([draw.getrandbits(64) for _ in range(total // each // 2)])
            outcomes += await _rounds(server.port, seeds, send, within_s, scenario.scale.settle_s)
            sizes.append(resident_bytes(pid))
        growth = (sizes[1] / sizes[0] - 1) * 100
        await _is_fine(server.port)
    wrong = none(f"{total} of {name}: errors in the log", sorted(unhandled(server.log)))
    readings = {outcome: float(count) for outcome, count in outcomes.most_common()}
    hung = 0.0 if send is _send_handshake else float(outcomes["no answer"])
    return [
        msgspec.structs.replace(wrong, readings=readings),
        Measured(label="left without an answer", value=hung, target=at_most(0)),
        Measured(label="growth of memory", value=growth, unit="%", target=GROWTH_PERCENT),
    ]


async def _rounds(
    port: int, seeds: Iterator[int], send: _Send, within_s: float, settle_s: float
) -> Counter[str]:
    """Connect and send for each seed, a few at a time; return how each connection ended."""
    ended = Counter[str]()

    async def rounds() -> None:
        for seed in seeds:
            one = await MinimalWebSocket.connect(("127.0.0.1", port))
            try:
                async with asyncio.timeout(within_s):
                    ended[await send(one, Random(seed))] += 1
            except TimeoutError:
                ended["no answer"] += 1
            except Refused as refused:
                ended[f"refused {refused.code}"] += 1
            except Dropped:
                ended["dropped"] += 1
            finally:
                one.close()

    await asyncio.gather(*(rounds() for _ in range(AT_ONCE)))
    await asyncio.sleep(settle_s)
    return ended


async def _send_frames(endpoint: WebSocketEndpoint | None, one: MinimalWebSocket, draw: Random) -> str:
    """Send odd frames, and wait until the server has read them all or ended the connection."""
    if endpoint:
        await one.handshake(path=endpoint.path)
    else:
        await one.send_hello(client_id=f"client-{draw.randrange(CLIENTS)}")
    honest = endpoint.honest if endpoint else None
    await one.write(b"".join(odd_frame(draw, honest) for _ in range(A_MESSAGE)))
    ping = framed(LAST, opcode=PING) if endpoint else framed(b'{"type":"ping","t":"%b"}' % LAST)
    await one.write(ping)
    while True:
        opcode, payload = await one.read()
        if opcode == CLOSE:
            return f"closed {int.from_bytes(payload[:2], 'big')}"
        if LAST in payload:
            return "stayed"


async def _send_handshake(one: MinimalWebSocket, draw: Random) -> str:
    request = odd_handshake(draw)
    place = draw.randrange(len(request)) if draw.random() < 0.3 else len(request)
    await one.write(request[:place])
    await asyncio.sleep(0)
    await one.write(request[place:])
    status, _ = await one.answer()
    return f"HTTP {status}"


async def _is_fine(port: int) -> None:
    """Check that another client is served as usual. Raises Dropped, Refused, TimeoutError."""
    async with asyncio.timeout(HUNG_S):
        one = await MinimalWebSocket.connect(("127.0.0.1", port))
        await one.send_hello()
        await one.put(type="send", client_msg_id="m", content="Still there?")
        while (await one.get())["type"] != "done":
            pass
        one.close()
