"""Who stays in as keys come and go, and what an `Authorization` header has to do with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis

from app.keys import add_key, revoke_key
from connections.authentication.access import AccessControl, Tickets, bearer
from connections.authentication.api_keys import ApiKeyStore
from connections.middleware import AllowedOrigins
from connections.protocol.errors import CloseCode
from connections.protocol.frames import Error
from tests.connections.fake_peer import Peer


async def test_a_key_that_is_revoked_while_the_model_loads_does_not_stay(
    tmp_path: Path, store: Redis
) -> None:
    """Between the token and the first frame there may be seconds."""
    file, peer = tmp_path / "keys", Peer()
    key = add_key(file, "ann")
    access = AccessControl(
        keys=ApiKeyStore(str(file)), web_tokens=None, tickets=Tickets(store), origins=AllowedOrigins(())
    )
    identity = await access.identify(authorization=f"Bearer {key}")
    with access.watch(identity, peer):
        access.reload()
        assert peer.closes == []
    revoke_key(file, "ann")
    access.reload_if_changed()
    with access.watch(identity, peer):
        assert [close.code for close in peer.closes] == [CloseCode.UNAUTHENTICATED]
        assert isinstance(peer.frames[0], Error)


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (None, None),
        ("", None),
        ("Basic YTpi", None),
        ("Bearer", ""),
        ("Bearer abc", "abc"),
        ("bEaReR  abc ", "abc"),
        ("Bearerabc", None),
    ],
)
def test_a_bearer_token_is_found_in_its_header_alone(header: str | None, token: str | None) -> None:
    assert bearer(header) == token
