"""What the terminal client keeps for its user, for whom alone it is readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.terminal.session import kept_client_id


def test_each_server_gets_a_client_id_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without authentication it opens one's conversations: another server must not learn it, nor the network."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    urls = [
        "ws://a.example/v1/ws",
        "ws://b.example/v1/ws",
        "wss://a.example/v1/ws",
        "ws://a.example:81/v1/ws",
    ]
    ids = [kept_client_id(url) for url in urls]
    assert len(set(ids)) == len(urls)
    assert ids == [kept_client_id(url) for url in urls]
    assert {len(one) for one in ids} == {32}
    assert kept_client_id("ws://127.0.0.1:8000/v1/ws") == kept_client_id("ws://localhost:8000/v1/ws")
    identity = tmp_path / "midstream" / "identity"
    assert identity.stat().st_mode & 0o777 == 0o600
    assert not any(one in identity.read_text() for one in ids)
