"""Origins that the operator lists in files."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from connections.middleware import MAX_LOGGED_CHARS, MAX_LOGGED_ORIGINS, AllowedOrigins
from connections.protocol.errors import InvalidList

HERE = "chat.example"


def test_a_list_may_name_files_beside_origins(tmp_path: Path) -> None:
    (tmp_path / "origins").write_text("# ours\nhttps://one.example  # the first\n\nhttps://two.example\n")
    origins = AllowedOrigins([f"@{tmp_path}/origins", "https://three.example"])
    for name in ("one", "two", "three"):
        assert origins.allow(f"https://{name}.example", host=HERE)
    assert not origins.allow("https://four.example", host=HERE)
    assert not origins.allow("# ours", host=HERE)


def test_files_are_read_again_when_told_so(tmp_path: Path) -> None:
    file = tmp_path / "origins"
    file.write_text("https://old.example")
    origins = AllowedOrigins([f"@{file}"])
    file.write_text("https://new.example")
    assert origins.allow("https://old.example", host=HERE)
    origins.reload()
    assert not origins.allow("https://old.example", host=HERE)
    assert origins.allow("https://new.example", host=HERE)


def test_a_file_that_is_gone_changes_nothing_and_is_told(tmp_path: Path) -> None:
    file = tmp_path / "origins"
    file.write_text("https://old.example")
    origins = AllowedOrigins([f"@{file}"])
    file.unlink()
    with capture_logs() as lines:
        origins.reload()
    assert origins.allow("https://old.example", host=HERE)
    assert (lines[0]["log_level"], str(file) in lines[0]["why"]) == ("error", True)


def test_a_star_stands_for_every_origin_and_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "origins"
    file.write_text("https://one.example")
    with capture_logs() as lines:
        listed, every = AllowedOrigins([f"@{file}"]), AllowedOrigins(["*"])
        for origin in ("https://anybody.example", "null", "file://", "http://["):
            assert every.allow(origin, host=HERE)
            assert not listed.allow(origin, host=HERE)
        file.write_text("*")
        listed.reload()
    assert listed.allow("https://anybody.example", host=HERE)
    warnings = [line for line in lines if "meaning" in line]
    assert len(warnings) == 2
    for line in warnings:
        assert "MIDSTREAM_ALLOWED_ORIGINS" in line["event"]
        assert "Any web page" in line["meaning"]


@pytest.mark.parametrize("pattern", ["https://*.example.org", "http://localhost:*", "**"])
def test_a_star_within_an_origin_stops_the_start(pattern: str) -> None:
    """It would match nothing, in silence."""
    with pytest.raises(InvalidList, match="write origins in full"):
        AllowedOrigins(["https://one.example", pattern])


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_can_not_be_read_stops_the_start(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "origins").write_bytes(content)
    with pytest.raises(InvalidList, match=r"origins can't be read: \w"):
        AllowedOrigins([f"@{tmp_path}/origins"])


def test_a_refused_origin_is_logged_once_and_what_its_sender_chose_is_bounded() -> None:
    """Its page's author sees the number 403 alone."""
    origins = AllowedOrigins([])
    with capture_logs() as lines:
        for _ in range(3):
            assert not origins.allow("https://forgotten.example", host=HERE)
        for number in range(2 * MAX_LOGGED_ORIGINS):
            assert not origins.allow(f"https://{number}.{'x' * 1000}", host=HERE)
    assert lines[0]["origin"] == "https://forgotten.example"
    assert lines[0]["remedy"] == "MIDSTREAM_ALLOWED_ORIGINS"
    assert len(lines) == MAX_LOGGED_ORIGINS
    assert max(len(line["origin"]) for line in lines) == MAX_LOGGED_CHARS
