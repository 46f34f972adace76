"""A service whose store is away at its start: what probes, clients and operators see, and how it ends."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.server_process import READY_S, ServerProcess
from tests.sessions.server_group import Node, node, restarted

UPSTREAM = '[[upstream]]\nname = "one"\nurl = "http://127.0.0.1:1/v1"\nmodel = "m"\ncontext_tokens = 4096\n'


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Node]:
    """A killed store."""
    async with node(tmp_path / "store", save="") as one:
        one.kill()
        await one.process.wait()
        yield one


@pytest.fixture
def waiting(store: Node, tmp_path: Path) -> Iterator[ServerProcess]:
    """A service that waits for its store, and answers."""
    (tmp_path / "upstreams.toml").write_text(UPSTREAM)
    server = ServerProcess(
        tmp_path,
        {
            "MIDSTREAM_REDIS_URL": f"redis://127.0.0.1:{store.port}/3",
            "MIDSTREAM_CONFIG": str(tmp_path / "upstreams.toml"),
        },
    )
    server.start(wait=False)
    try:
        until(server, lambda: get(server, "/healthz")[0] == 200)
        yield server
    finally:
        assert server.process is not None
        if server.process.poll() is None:
            server.kill()


def get(server: ServerProcess, path: str) -> tuple[int, str]:
    """Return status and body; 0 if nothing answers."""
    try:
        with urllib.request.urlopen(server.url + path, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


def until(server: ServerProcess, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while not happened():
        assert server.process is not None
        assert server.process.poll() is None, server.log.read_text()
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.05)  # polling a process has no event to wait for


def test_it_is_alive_and_not_ready_and_says_why(waiting: ServerProcess, store: Node) -> None:
    status, body = get(waiting, "/readyz")
    report = json.loads(body)
    assert (status, report["ready"], report["store"]) == (503, False, "unavailable")
    assert "does not answer" in report["store_message"]
    status, body = get(waiting, "/v1/models")
    assert (status, json.loads(body)["error"]["code"]) == (503, "store_unavailable")
    with pytest.raises(InvalidStatus) as refused, connect(waiting.ws_url):
        pass
    assert refused.value.response.status_code == 503
    (line,) = (json.loads(line) for line in waiting.log.read_text().splitlines() if "waiting for" in line)
    assert (line["event"], line["level"]) == ("waiting for the store", "warning")
    assert line["at"] == f"redis://127.0.0.1:{store.port}/3"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once(number: signal.Signals, waiting: ServerProcess) -> None:
    waiting.send(number)
    assert waiting.end(number) == 0
    events = [json.loads(line)["event"] for line in waiting.log.read_text().splitlines() if line[0] == "{"]
    assert events[-2:] == ["stopped during startup", "stopped"]
    assert "Traceback" not in waiting.log.read_text()


async def test_it_serves_once_the_store_answers(waiting: ServerProcess, store: Node) -> None:
    async with restarted(store):
        until(waiting, lambda: json.loads(get(waiting, "/readyz")[1] or "{}").get("store") == "ok")
        assert get(waiting, "/version")[0] == 200
        assert waiting.stop() == 0
