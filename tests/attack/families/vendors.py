"""The endpoints of other protocols: sockets full of chats, long chains and forks of what is stored, chats that are left."""

from __future__ import annotations

import json
import uuid

from tests.attack.attack import Family, Open, TargetKind
from tests.attack.client import Attacker, Socket
from tests.attack.requests import MODEL, RESPONSES, frame, get, minimal_request, post

family = Family(sockets=4)
CHAT = "/v1/ai-sdk/chat"
CHAIN_OWNER, FORK_OWNER = "attackers-chain-7b1e0c9d42", "sk-Attackers0Past1Kept2Responses"
"""Names, whose stored responses all attackers read and continue."""
LINKS = 40
LINK = [{"role": "user", "content": "x" * 30_000}] * 8
UNLISTED = [
    {"type": "mcp", "server_label": f"s{number}", "server_url": f"http://127.0.0.1:1/{number}"}
    for number in range(100)
]


def _at(path: str, *, small: bool = False) -> Open:
    """Open a WebSocket of an endpoint, as a client of its own if the endpoint asks for one."""

    async def opens(attacker: Attacker) -> Socket:
        return await attacker.handshake(path.format(client=attacker.socket_id), small=small)

    return opens


def _stored(**fields: object) -> bytes:
    """Return a request that stores 10 KB, under a name to which it belongs."""
    given = {"metadata": {f"k{number}": "v" * 500 for number in range(16)}, "instructions": "x" * 2_000}
    options = {"max_output_tokens": 1, "stream": False}
    return minimal_request(RESPONSES, key=FORK_OWNER, **given | options | fields)


async def a_response(attacker: Attacker) -> str:
    """Store a response; return its id."""
    one = await attacker.connect()
    await one.write(_stored())
    await one.answer()
    return str((await one.body())["id"])


async def a_chain(attacker: Attacker) -> str:
    """Responses that each follow the one before, 9 MB in all; gives the last one's id."""
    one = await attacker.connect()
    last: str | None = None
    for _ in range(LINKS):
        fields = {"input": LINK, "truncation": "auto", "max_output_tokens": 1, "stream": False}
        await one.write(minimal_request(RESPONSES, key=CHAIN_OWNER, previous_response_id=last, **fields))
        status, reason = await one.answer()
        response = await one.body()
        assert status == 200, f"{status} {reason}: {response}"
        last = str(response["id"])
    return str(last)


def _read(attacker: Attacker, more: str) -> bytes:
    return get(f"{RESPONSES}/{attacker.job.note}{more}", key=CHAIN_OWNER)


def _continue_or_read(attacker: Attacker, number: int) -> bytes:
    if number % 2 == 0:
        return _read(attacker, "/input_items?limit=1")
    last = attacker.job.note
    return minimal_request(RESPONSES, key=CHAIN_OWNER, previous_response_id=last, stream=False)


family.flood(
    "unstored-responses", "Has responses of 20,000 characters kept in its socket's memory.",
    lambda *_: frame("response.create", model=MODEL, input="x" * 20_000, store=False, max_output_tokens=1),
    per_s=40, opens=_at(RESPONSES), sockets=8, expect="response.incomplete",
)  # fmt: skip
family.ask_often(
    "stored-forks", "Continues one stored response again and again.",
    lambda me, _: _stored(previous_response_id=me.job.note), per_s=20, prepare=a_response, expect="HTTP 200",
)  # fmt: skip
family.ask_often(
    "read-chains", "Reads the end of a chain of responses of 9 MB.",
    lambda me, number: _read(me, "?include=all" if number % 2 else ""), per_s=20, prepare=a_chain,
)  # fmt: skip
family.ask_often(
    "long-chains",
    "Continues that chain, which fits in no window.",
    _continue_or_read,
    per_s=20,
    prepare=a_chain,
)
family.ask_often(
    "unlisted-servers", "Asks for responses with the tools of 100 unlisted servers.",
    lambda me, _: minimal_request(RESPONSES, key=me.client_id, tools=UNLISTED, stream=False), per_s=20,
    ground=TargetKind.OPEN, expect="HTTP 404",
)  # fmt: skip


async def _run_thread(attacker: Attacker) -> None:
    """Its answer has no length: the socket is left for a new one."""
    fields = {"threadId": attacker.client_id, "forwardedProps": {"server_tools": ["*"], "max_tokens": 1}}
    await attacker.ask(minimal_request("/v1/ag-ui", key=f"sk-of-a-thread-{attacker.client_id}", **fields))


family.visits(
    "rerun-threads", "Runs one stored thread from four sockets at once.",
    _run_thread, per_s=20, ground=TargetKind.OPEN, expect="HTTP 200",
)  # fmt: skip


@family.attack(sockets=8, expect="HTTP 200")
async def left_chats(attacker: Attacker) -> None:
    """Leaves a chat in the middle of an answer, resumes it and leaves again."""
    chat = f"left-{attacker.place}-{attacker.life}"
    said = {"id": uuid.uuid4().hex, "role": "user", "parts": [{"type": "text", "text": "Hello."}]}
    body = {"id": chat, "messages": [said], "on_disconnect": "continue"}
    for request in (post(CHAT, json.dumps(body).encode()), *[get(f"{CHAT}/{chat}/stream")] * 4):
        await attacker.ask(request, await attacker.connect(small=True))
        attacker.close()
