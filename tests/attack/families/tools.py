"""Tools and formats: schemas that are made to be costly, far too many tools, and what is said to calls of nobody."""

from __future__ import annotations

import asyncio
import json
import uuid
from functools import cache
from typing import Any

from tests.attack.attack import MB, Cost, Family, TargetKind
from tests.attack.client import Attacker
from tests.attack.families.bodies import MESSAGE, post
from tests.chaos.minimal_websocket import framed

family = Family(sockets=2, ground=TargetKind.MODEL, cost=Cost.BODY)
ON_SOCKETS: dict[str, Any] = {"sockets": 4, "ground": TargetKind.SCRIPTED, "cost": Cost.SOCKET}
DECISION = {"type": "tool_decision", "call_id": "call_1", "decision": "allow", "args_sha256": "0" * 64}
ALLOWED = framed(json.dumps({**DECISION, "conversation_id": "read"}).encode())
RESULT = 10 * MB
SCHEMA = 5 * MB
TOOLS = 10_000


def _chat(**fields: Any) -> bytes:
    requested = {"model": "midstream-demo", "messages": [MESSAGE], "max_tokens": 1}
    return post("/v1/chat/completions", json.dumps(requested | fields).encode())


def _response_format(schema: dict[str, Any]) -> bytes:
    named = {"name": "s", "schema": schema, "strict": True}
    return _chat(response_format={"type": "json_schema", "json_schema": named})


def _product() -> dict[str, Any]:
    """Every choice of one part with every choice of the others: four to the power of eight."""
    part = [{"properties": {f"p{n}": {"type": "string"}}} for n in range(4)]
    return {"allOf": [{"anyOf": [{"title": f"{n}", **one} for one in part]} for n in range(8)]}


COSTLY: tuple[dict[str, Any], ...] = (
    _product(),
    {"type": "integer", "multipleOf": 99_991},
    {"allOf": [{"type": "string", "pattern": f"^.*{n}.*x.*{7 * n}.*$"} for n in range(20)]},
    {"type": "string", "pattern": "(" * 3_000 + "a" + ")" * 3_000},
    {"properties": {f"p{n}": {} for n in range(5_000)}},
    {"allOf": [{"$ref": "#"}, {"type": "object"}]},
)
"""Each takes what a schema may take, or would take far more."""


@cache
def _huge_schema() -> bytes:
    return _response_format({"description": "x" * SCHEMA})


@cache
def _ten_thousand_tools() -> bytes:
    tools = [{"type": "function", "function": {"name": f"t{n}"}} for n in range(TOOLS)]
    return _chat(tools=tools)


@cache
def _huge_result() -> bytes:
    calls = [{"id": "call_1", "type": "function", "function": {"name": "t", "arguments": "{}"}}]
    reported = {"role": "tool", "tool_call_id": "call_1", "content": "x" * RESULT}
    return _chat(messages=[MESSAGE, {"role": "assistant", "tool_calls": calls}, reported])


family.ask("huge-schemas", "Asks for a reply that follows a schema of 5 MB.", _huge_schema)


@family.attack()
async def costly_schemas(attacker: Attacker) -> None:
    """Asks for replies that follow schemas too complex to compile."""
    one = await attacker.connect()
    for schema in COSTLY:
        await attacker.ask(one, _response_format({**schema, "title": uuid.uuid4().hex}))


family.ask("many-tools", "Asks for a reply that may call 10,000 tools.", _ten_thousand_tools)
family.ask("huge-results", "Sends a completion a tool result of 10 MB.", _huge_result)


@family.attack(**ON_SOCKETS)
async def huge_result_frames(attacker: Attacker) -> None:
    """Sends a tool result of 10 MB in one frame."""
    one = await attacker.send_hello()
    frame = {"type": "tool_result", "call_id": "call_1", "content": "x" * RESULT}
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(attacker.listen(one))
        await one.write(framed(json.dumps(frame).encode()))


family.flood(
    "replayed-decisions", "Approves calls of another user's conversation.", lambda *_: ALLOWED, per_s=100, **ON_SOCKETS
)  # fmt: skip
