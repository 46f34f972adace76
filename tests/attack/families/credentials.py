"""Keys, tickets and tokens, good and bad ones, in floods."""

from __future__ import annotations

import json
import secrets
from base64 import urlsafe_b64encode
from functools import cache

from tests.attack.attack import TargetKind, attack
from tests.attack.client import Attacker, beats
from tests.attack.families.bodies import post
from tests.chaos.minimal_websocket import Frame


@attack(sockets=8, ground=TargetKind.KEYS)
async def tickets(attacker: Attacker) -> None:
    """Takes tickets with a valid key, and uses none."""
    async for _ in beats(50):
        await attacker.ask(await attacker.connect(), post("/v1/tickets", b"", key=attacker.key))
        attacker.close()


@attack(sockets=8, ground=TargetKind.KEYS)
async def tickets_without_a_key(attacker: Attacker) -> None:
    """Asks for tickets with invalid keys."""
    async for _ in beats(50):
        await attacker.ask(
            await attacker.connect(), post("/v1/tickets", b"", key=f"msk_{secrets.token_urlsafe(32)}")
        )
        attacker.close()


@attack(sockets=8, ground=TargetKind.KEYS)
async def wrong_keys(attacker: Attacker) -> None:
    """Sends `hello` with invalid keys."""
    async for _ in beats(20):
        await _try(attacker, f"msk_{secrets.token_urlsafe(32)}")


@attack(sockets=8, ground=TargetKind.KEYS)
async def made_up_key_ids(attacker: Attacker) -> None:
    """Sends tokens with unknown key ids."""
    async for _ in beats(20):
        await _try(attacker, _forged(secrets.token_hex(8), b"s" * 256))


@attack(sockets=8, ground=TargetKind.KEYS)
async def forged_signatures(attacker: Attacker) -> None:
    """Sends tokens with random signatures."""
    async for _ in beats(20):
        await _try(attacker, _forged(KEY_ID, secrets.token_bytes(256)))


@attack(sockets=8, ground=TargetKind.KEYS)
async def long_tokens(attacker: Attacker) -> None:
    """Sends tokens of 16,000 characters."""
    async for _ in beats(20):
        await _try(attacker, _long_token())


KEY_ID = "the-issuers-key"


async def _try(attacker: Attacker, token: str) -> None:
    """Say hello with a token, note the answer, and leave."""
    one = await attacker.handshake()
    await one.put(type="hello", client_id=attacker.client_id, token=token)
    frame: Frame = await one.get()
    attacker.count(f"{frame['type']} {frame.get('code', '')}".strip())
    attacker.close()


def _forged(key_id: str, signature: bytes) -> str:
    header = {"alg": "RS256", "typ": "JWT", "kid": key_id}
    claims = {"sub": "anybody", "exp": 4_000_000_000}
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@cache
def _long_token() -> str:
    return _forged(KEY_ID, b"s" * 11_700)
