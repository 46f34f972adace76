"""The endpoints of operators and of owners: acts without a key, exports without end."""

from __future__ import annotations

import secrets

from tests.attack.attack import SMALL_BUFFER, Family, TargetKind, beats
from tests.attack.client import Attacker
from tests.attack.families.slow_readers import a_long_conversation

family = Family(sockets=4)
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


def _act(_: Attacker, number: int) -> bytes:
    return ACT.format(act=ACTS[number % len(ACTS)], key=f"msk_{secrets.token_urlsafe(32)}").encode()


family.ask_often(
    "guessed-operators", "Calls the admin API with invalid keys.", _act, per_s=100, ground=TargetKind.KEYS
)


@family.attack(prepare=a_long_conversation)
async def exports(attacker: Attacker) -> None:
    """Asks for exports 20 times a second, and reads nothing."""
    async for number in beats(20):
        one = await attacker.connect(receive_buffer=SMALL_BUFFER)
        await one.write(EXPORT.format(owner=f"{attacker.client_id}-{number % 4}").encode())
        await attacker.receive(one)
        if number % 8 == 7:
            attacker.close()
