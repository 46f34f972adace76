"""What the terminal client keeps for its user, for whom alone it is readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.terminal.session import MOST_HISTORY_BYTES, history_file, kept_client_id


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    return tmp_path / "midstream"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_each_server_gets_a_client_id_of_its_own(home: Path) -> None:
    """Without authentication it opens one's conversations: another server must not learn it, nor the network."""
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
    assert mode(home / "identity") == 0o600
    assert not any(one in (home / "identity").read_text() for one in ids)


def test_what_was_typed_is_kept_for_the_user_alone(home: Path) -> None:
    home.mkdir()
    (home / "chat-history").write_text("\n# 2026-11-23\n+Hello.\n")
    (home / "chat-history").chmod(0o644)
    assert history_file().read_text() == "\n# 2026-11-23\n+Hello.\n"
    assert mode(history_file()) == 0o600


def test_of_much_that_was_typed_the_newer_half_is_kept(home: Path) -> None:
    entries = [f"\n# 2026-11-23 10:00:00\n+Line {number}.\n" for number in range(40_000)]
    history_file().write_text("".join(entries))
    kept = history_file().read_text()
    assert len(kept) <= MOST_HISTORY_BYTES / 2
    assert kept in "".join(entries)
    assert kept.startswith("\n# ")
    assert kept.endswith("+Line 39999.\n")
    assert mode(home / "chat-history") == 0o600
