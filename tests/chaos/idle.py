"""Memory of an idle connection after its hello, compared with a bare server's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.bench.engine.report import Target
from tests.chaos import baseline_server, gateway
from tests.chaos.memory import resident_bytes
from tests.chaos.minimal_websocket import MinimalWebSocket
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scale, Scenario
from tests.server_process import serving

TIMES = Target(1.5, at_most=True)
AT_ONCE = 100
WARM = 50
"""Connections that are opened and closed first: memory that they cause once is not counted."""


def measure(scenario: Scenario) -> Sequence[Finding]:
    """Measure both servers."""
    roomy = {"MIDSTREAM_MAX_CONNECTIONS": str(2 * (scenario.scale.idle + WARM))}
    servers = {"bare": baseline_server.command("idle"), "ours": gateway.command(gateway.Script())}
    cost = {name: _cost(scenario, scenario.folder / name, one, roomy) for name, one in servers.items()}
    ratio = Finding(
        part=Part.IDLE,
        label=f"{scenario.scale.idle} idle connections: memory of each, times a bare server's",
        value=cost["ours"] / cost["bare"],
        readings=cost,
        target=TIMES,
    )
    own = Finding(part=Part.IDLE, label="memory of an idle connection", value=cost["ours"], unit="KB")
    return ratio, own


def _cost(scenario: Scenario, folder: Path, command: tuple[str, ...], environ: dict[str, str]) -> float:
    """Return the KB of memory per connection."""
    folder.mkdir()
    with serving(folder, environ, command=command) as server:
        assert server.process is not None
        return asyncio.run(_connect(server.port, server.process.pid, scenario.scale))


async def _connect(port: int, pid: int, scale: Scale) -> float:
    for one in await _open(port, WARM):
        one.close()
    await asyncio.sleep(scale.settle_s)
    before = resident_bytes(pid)
    opened = [one for _ in range(0, scale.idle, AT_ONCE) for one in await _open(port, AT_ONCE)]
    await asyncio.sleep(scale.settle_s)
    after = resident_bytes(pid)
    for one in opened:
        await one.send(b"{}")  # a server that had dropped it would reset the connection
        one.close()
    return (after - before) / 1024 / len(opened)


async def _open(port: int, count: int) -> list[MinimalWebSocket]:
    return await asyncio.gather(*(_opened(port) for _ in range(count)))


async def _opened(port: int) -> MinimalWebSocket:
    one = await MinimalWebSocket.connect(("127.0.0.1", port))
    await one.send_hello()
    return one
