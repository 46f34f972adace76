"""Recorded requests of large programs: `python -m tests.clients.tools.transcripts codex` records them again.

The command runs an agent of `coding_agents.py` against the scripted server, with a proxy between them that keeps what
the agent sends. Fields, names, types and numbers stay as they were sent. Prose is other people's, and may name paths
and machines: only its length is kept, beside the few texts that are ours. Other headers than `HEADERS` are dropped.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tests.clients.environments import node_modules
from tests.clients.tools.coding_agents import AGENTS, PROMPTS, RESULT, run_agent
from tests.clients.tools.scripted_server import COMMAND, NOTHING
from tests.server_process import app_in_thread, serving

HERE = Path(__file__).parent
HEADERS = ("accept", "anthropic-beta", "anthropic-version", "content-type", "openai-beta")
NOT_PASSED = ("connection", "content-length", "host", "transfer-encoding")
METHODS = ("GET", "HEAD", "POST")
OWN = (
    *PROMPTS.values(),
    RESULT,
    NOTHING,
    "Let me see.",
    "weather.txt",
    "The weather in Oslo",
    "Tool available: WebFetch",
)
"""Texts that are ours, and stay as they are."""
NAMES = ("$schema", "call_id", "id", "name", "required", "tool_name", "tool_use_id")
"""Fields whose texts stay as they are."""
_WORD = re.compile(r"[\w.:-]{1,32}\Z", re.ASCII)
_OWN = re.compile(f"({'|'.join(map(re.escape, OWN))})")
_FILLER = " filler"
_TEXT, _JSON = "$text", "$json"

Recorded = dict[str, Any]
"""One request: its turn (a key of `PROMPTS`), method, path, headers and body, and the status that it got."""


def transcript(agent: str) -> list[Recorded]:
    """Return the requests of an agent, with filler where prose was."""
    lines = (HERE / "transcripts" / f"{agent}.jsonl").read_text().splitlines()
    return [expanded(json.loads(line)) for line in lines[1:]]


def reduced(value: Any, field: str = "") -> Any:
    """Return JSON without other people's prose, of which only the length is left."""
    match value:
        case dict():
            return {name: reduced(one, name) for name, one in value.items()}
        case list():
            return [reduced(one, field) for one in value]
        case str() if field not in NAMES and not _WORD.match(value):
            return _reduced_text(value)
        case _:
            return value


def _reduced_text(text: str) -> Any:
    """Return a text as its own parts and the lengths of others; the text of a JSON object, as its reduced object."""
    try:
        inner = json.loads(text)
    except ValueError:
        inner = None
    if isinstance(inner, dict):
        return {_JSON: reduced(inner)}
    parts = [part if part in OWN else len(part) for part in _OWN.split(text) if part]
    return text if parts in ([], [text]) else {_TEXT: parts}


def expanded(value: Any) -> Any:
    """Return reduced JSON with filler of the same length where prose was."""
    match value:
        case {"$text": parts}:
            return "".join(part if isinstance(part, str) else _filler(part) for part in parts)
        case {"$json": inner}:
            return json.dumps(expanded(inner))
        case dict():
            return {name: expanded(one) for name, one in value.items()}
        case list():
            return [expanded(one) for one in value]
        case _:
            return value


def _filler(length: int) -> str:
    return (_FILLER * (length // len(_FILLER) + 1))[:length]


class _Proxy:
    """Passes requests on to a server, and keeps them."""

    def __init__(self, target: str) -> None:
        self.turn = ""
        self.requests: list[Recorded] = []
        self._client = httpx.AsyncClient(base_url=target, timeout=60, trust_env=False)

    async def pass_on(self, request: Request) -> StreamingResponse:
        """Answer as the server does."""
        body = await request.body()
        sent = {name: value for name, value in request.headers.items() if name not in NOT_PASSED}
        path = str(request.url).removeprefix(str(request.base_url)[:-1])
        recorded: Recorded = {
            "turn": self.turn,
            "method": request.method,
            "path": path,
            "headers": {name: value for name, value in sent.items() if name in HEADERS},
            "body": reduced(json.loads(body)) if body else None,
        }
        self.requests.append(recorded)
        passed = self._client.build_request(request.method, path, content=body, headers=sent)
        answer = await self._client.send(passed, stream=True)
        recorded["status"] = answer.status_code
        named = {name: value for name, value in answer.headers.items() if name not in NOT_PASSED}
        return StreamingResponse(answer.aiter_raw(), answer.status_code, named)


def record(name: str) -> None:
    """Run an agent for each prompt, and write what it sent."""
    agent = AGENTS[name]
    modules = node_modules(print, HERE / f"{name}.json")
    version = json.loads((modules / agent.package / "package.json").read_text())["version"]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), command=COMMAND) as server,
        app_in_thread(Route("/{path:path}", (proxy := _Proxy(server.url)).pass_on, methods=METHODS)) as port,
    ):
        for turn in ("words", *agent.calls):
            proxy.turn = turn
            home = Path(folder, turn)
            home.mkdir()
            print(turn, run_agent(agent, modules, f"http://127.0.0.1:{port}", home, PROMPTS[turn]))
    head: Mapping[str, str] = {"package": agent.package, "version": version}
    lines = [json.dumps(one, ensure_ascii=False) for one in (head, *proxy.requests)]
    (HERE / "transcripts" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    for each in sys.argv[1:] or AGENTS:
        record(each)
