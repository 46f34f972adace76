"""The endpoints of operators and of owners: acts without a key, exports without end."""

from __future__ import annotations

import secrets

from tests.attack.attack import TargetKind, attack
from tests.attack.client import Attacker, beats
from tests.attack.families.slow_readers import a_long_conversation

ACTS = (
    "GET /v1/admin/turns",
    "GET /v1/admin/export?principal=a&client_id=b",
    "DELETE /v1/admin/owner?principal=a",
    "DELETE /v1/admin/connections?principal=a",
    "GET /v1/admin/unknown/" + "x" * 4_000,
    "POST /v1/admin/keys",
)
ACT = "{act} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n"
EXPORT = "GET /v1/export?client_id={owner} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@attack(sockets=4, ground=TargetKind.KEYS)
async def guessed_operators(attacker: Attacker) -> None:
    """Calls the admin API with invalid keys."""
    one = await attacker.connect()
    async for number in beats(100):
        act, key = ACTS[number % len(ACTS)], f"msk_{secrets.token_urlsafe(32)}"
        await attacker.ask(one, ACT.format(act=act, key=key).encode())


@attack(sockets=4, prepare=a_long_conversation)
async def exports(attacker: Attacker) -> None:
    """Asks for exports 20 times a second, and reads nothing."""
    async for number in beats(20):
        one = await attacker.connect(receive_buffer=8 * 1024)
        await one.write(EXPORT.format(owner=f"{attacker.client_id}-{number % 4}").encode())
        await attacker.receive(one)
        if number % 8 == 7:
            attacker.close()
