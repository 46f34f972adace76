"""Keys in a file that changes while they are in use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from connections.authentication.api_keys import ApiKey, ApiKeyStore, digest_of, of_key, with_key
from connections.protocol.errors import InvalidList


def write(path: Path, *names: str) -> Path:
    """A file with keys that are the names themselves."""
    text = ""
    for name in names:
        text = with_key(text, ApiKey(name, digest_of(name)))
    path.write_text(text)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "keys", "ann", "bob")


def good(ring: ApiKeyStore) -> set[str]:
    return {
        name
        for name in ("ann", "bob", "cat")
        if (key := ring.find(name)) and ring.revocation_reason(of_key(key)) is None
    }


@pytest.mark.parametrize("mark", ["", "@"])
def test_a_setting_names_a_file(mark: str, file: Path) -> None:
    assert good(ApiKeyStore(f"{mark}{file}")) == {"ann", "bob"}


def test_a_setting_is_the_list_itself() -> None:
    ring = ApiKeyStore(f"ann:{digest_of('ann')}, cat:{digest_of('cat')},")
    assert good(ring) == {"ann", "cat"}
    assert not ring.reload_if_changed()
    assert not ring.reload()


def test_a_changed_file_is_noticed_and_an_unchanged_one_not_read(file: Path) -> None:
    ring = ApiKeyStore(str(file))
    assert not ring.reload_if_changed()
    write(file, "bob", "cat")
    assert ring.reload_if_changed()
    assert good(ring) == {"bob", "cat"}
    assert not ring.reload_if_changed()


def test_a_file_that_is_empty_while_it_is_written_turns_nobody_out(file: Path) -> None:
    now = 1000.0
    ring = ApiKeyStore(str(file), clock=lambda: now)
    file.write_text("")
    assert not ring.reload_if_changed()
    assert good(ring) == {"ann", "bob"}
    write(file, "bob", "cat")
    assert ring.reload_if_changed()
    assert good(ring) == {"bob", "cat"}
    file.write_text("")
    assert not ring.reload_if_changed()
    now += 1.0
    assert ring.reload_if_changed()  # it stays empty
    assert good(ring) == set()


def test_a_file_of_the_same_size_and_time_put_in_its_place_is_noticed(file: Path) -> None:
    ring = ApiKeyStore(str(file))
    facts = file.stat()
    other = write(file.with_name("other"), "ann", "cat")
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(file)
    assert ring.reload_if_changed()
    assert good(ring) == {"ann", "cat"}


@pytest.mark.parametrize("content", [None, b"\xff", b"ann:msk_secret"])
def test_a_file_that_became_unusable_changes_nothing_and_is_told_once(
    content: bytes | None, file: Path
) -> None:
    ring = ApiKeyStore(str(file))
    file.unlink() if content is None else file.write_bytes(content)
    with capture_logs() as lines:
        assert not ring.reload_if_changed()
        assert not ring.reload_if_changed()
    assert good(ring) == {"ann", "bob"}
    assert [line["log_level"] for line in lines] == ["error"]
    assert str(file) in lines[0]["why"]
    assert "secret" not in str(lines)


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file"), (b"\xff", "UTF-8"), (b"ann", "entry 1 is not NAME:HASH")]
)
def test_a_file_that_can_not_be_used_stops_the_start(content: bytes | None, why: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    with pytest.raises(InvalidList, match=rf"keys.*{why}"):
        ApiKeyStore(str(tmp_path / "keys"))
