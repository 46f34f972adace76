"""Two replicas behind a real nginx and a real Caddy, restarted one after the other while people use them."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from tests.chaos.gateway import UNHURRIED, Script, command
from tests.deploy.reverse_proxy import ReverseProxy
from tests.server_process import ServerProcess, serving

RECONNECT = 1012
NOTICED_S = 2.0
"""How long a replica has been ready before the next one is stopped, as deploy/README.md says: Caddy looks each half second."""
AT_ONCE = 3
"""People of each kind."""
BODY = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello?"}]}


@pytest.fixture
def replicas(tmp_path: Path, store_url: str) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two that share a store and an upstream."""
    for name in ("upstream", "one", "two"):
        (tmp_path / name).mkdir()
    with ExitStack() as stack:
        upstream = stack.enter_context(
            serving(tmp_path / "upstream", UNHURRIED, command=command(Script(words=5)))
        )
        (file := tmp_path / "upstreams.toml").write_text(
            f'[[upstream]]\nname = "one"\nurl = "{upstream.url}/v1"\nmodel = "midstream-demo"\n'
            'context_tokens = 4096\nserver = "midstream"\n'
        )
        settings = {
            "MIDSTREAM_REDIS_URL": store_url,
            "MIDSTREAM_CONFIG": str(file),
            "MIDSTREAM_DRAIN_TIMEOUT": "30",
        }
        one, two = (
            stack.enter_context(serving(tmp_path / name, UNHURRIED | settings)) for name in ("one", "two")
        )
        yield one, two


def outcome(answer: httpx.Response) -> str:
    """The status, and why where it is an error."""
    return str(answer.status_code) if answer.is_success else f"{answer.status_code} {answer.text}"


class SiteClients:
    """They use a site, and note what each attempt gave."""

    def __init__(self, reverse_proxy: ReverseProxy) -> None:
        self._front = reverse_proxy
        self.seen = Counter[str]()

    async def get(self, client: httpx.AsyncClient) -> None:
        self.seen[f"GET {(await client.get('/v1/models')).status_code}"] += 1

    async def post(self, client: httpx.AsyncClient) -> None:
        self.seen[f"POST {outcome(await client.post('/v1/chat/completions', json=BODY))}"] += 1

    async def stream(self, client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/chat/completions", json=BODY | {"stream": True})
        self.seen[f"stream {outcome(answer)} {'[DONE]' in answer.text}"] += 1

    async def send_hello(self, _: httpx.AsyncClient) -> None:
        url, subprotocols = f"wss://localhost:{self._front.https_port}/v1/ws", [Subprotocol("midstream.v1")]
        async with connect(url, ssl=self._front.tls, subprotocols=subprotocols) as socket:
            await socket.send(json.dumps({"type": "hello"}))
            try:
                self.seen[f"socket {json.loads(await socket.recv())['type']}"] += 1
            except ConnectionClosed as closed:
                if closed.code != RECONNECT:  # it was opened just before its server stopped
                    raise

    async def keep(self, act: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
        """Do it again and again until cancelled."""
        url = f"https://localhost:{self._front.https_port}"
        async with httpx.AsyncClient(base_url=url, verify=self._front.tls, timeout=60) as client:
            while True:
                try:
                    await act(client)
                except (httpx.HTTPError, WebSocketException, OSError, ssl.SSLError) as failed:
                    self.seen[f"{act.__name__} {failed!r}"] += 1


@pytest.mark.parametrize("name", ["nginx", "caddy"])
async def test_a_rolling_restart_fails_no_request_and_no_handshake(
    name: str,
    replicas: tuple[ServerProcess, ServerProcess],
    run_reverse_proxy: Callable[[ReverseProxy], None],
    request: pytest.FixtureRequest,
) -> None:
    site: ReverseProxy = request.getfixturevalue(f"{name}_site")(*(one.port for one in replicas))
    run_reverse_proxy(site)
    people = SiteClients(site)
    acts = (people.get, people.post, people.stream, people.send_hello)
    crowd = [asyncio.create_task(people.keep(act)) for act in acts for _ in range(AT_ONCE)]
    try:
        for replica in replicas:
            await asyncio.to_thread(replica.restart)
            await asyncio.sleep(NOTICED_S)
    finally:
        for one in crowd:
            one.cancel()
        await asyncio.wait(crowd)
    assert set(people.seen) == {"GET 200", "POST 200", "stream 200 True", "socket ready"}, people.seen
    assert min(people.seen.values()) > AT_ONCE
