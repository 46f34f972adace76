"""Keys, tokens and tickets are not in a real server's log at its lowest level, not in its answers, not in its store."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

from redis.asyncio import Redis
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from app.keys import add_key
from sessions.store.client import connect as store_client
from sessions.store.embedded import embedded_store
from tests.chaos import gateway
from tests.jwt_signing import SECRET, token
from tests.server_process import ServerProcess, serving


class Intruder:
    """Sends tokens in every place that takes one, and keeps all answers."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.heard = ""

    async def send(self, *frames: dict[str, str], query: str = "", header: str | None = None) -> None:
        """Sends frames to a socket until it closes or all are sent."""
        headers = {"Authorization": f"Bearer {header}"} if header else {}
        async with connect(f"{self._server.ws_url}{query}", additional_headers=headers) as socket:
            try:
                for frame in frames:
                    await socket.send(json.dumps(frame))
                    self.heard += str(await socket.recv())
            except ConnectionClosed as closed:
                self.heard += str(closed)

    async def ask(self, path: str, *, shown: str, method: str = "POST") -> str:
        """Sends an HTTP request; returns the body."""
        return await asyncio.to_thread(self._ask, path, shown, method)

    def _ask(self, path: str, shown: str, method: str) -> str:
        request = urllib.request.Request(
            f"{self._server.url}{path}", method=method, headers={"Authorization": f"Bearer {shown}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as refused:
            with refused:
                self.heard += refused.read().decode()
            return ""


async def dump_store(store: Redis) -> str:
    """All names and values of the store."""
    names = [name async for name in store.scan_iter()]
    dumps = [await store.dump(name) for name in names]
    return f"{names}{dumps}"


async def test_nothing_that_lets_in_is_ever_told(keys: Path, tmp_path: Path) -> None:
    good, wrong, long = add_key(keys, "ann"), "msk_" + "w" * 43, "msk_" + "l" * 20_000
    jwt, old, forged = token(), token(exp=int(time.time()) - 3), token("a forger's secret of the same length")
    async with embedded_store(tmp_path / "store") as url, store_client(url) as store:
        environ = {
            "MIDSTREAM_REDIS_URL": url,
            "MIDSTREAM_API_KEYS": str(keys),
            "MIDSTREAM_JWT_SECRET": SECRET,
            "MIDSTREAM_LOG_LEVEL": "debug",
        }
        with serving(tmp_path, environ, command=gateway.command(gateway.Script())) as server:
            intruder = Intruder(server)
            tickets = [json.loads(await intruder.ask("/v1/tickets", shown=good))["ticket"] for _ in range(2)]
            for shown in (good, jwt, old, wrong, forged, long, tickets[0], tickets[0], "mst_wrong"):
                hello = {"type": "hello", "token": shown}
                await intruder.send(hello, {"type": "auth.refresh", "token": shown, "ref": "r"})
                await intruder.send({"type": "hello"}, query=f"?token={shown[:2000]}", header=shown[:2000])
                await intruder.send({"type": "hello", "client_id": f"{shown[:100]} {shown[:20]}"})
                await intruder.send(hello, {"type": "auth.refresh", "token": wrong})
                await intruder.ask(f"/v1/tickets?token={shown[:2000]}", shown=f"{shown[:2000]}x")
                await intruder.ask(f"/static/{shown[:200]}", shown=shown[:2000], method="GET")
            in_store = await dump_store(store)
            server.stop()
        log = server.log.read_text()
    assert log.count('"credentials rejected"') > 9
    for secret in (good, jwt, old, wrong, forged, long, SECRET, *tickets):
        assert secret not in log
        assert secret not in in_store
        assert secret not in intruder.heard
        assert secret[4:40] not in log + in_store
    assert "Traceback" not in log
