"""`midstream keys`: keys are shown once, and their file is changed whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import main
from app.keys import add_key, listed_keys, revoke_key
from connections.authentication.api_keys import ApiKeyStore
from connections.protocol.errors import InvalidList


def keys(*arguments: str, file: Path | str | None) -> Result:
    """Run the command."""
    environ = {} if file is None else {"MIDSTREAM_API_KEYS": str(file)}
    return CliRunner().invoke(main, ["keys", *arguments], env=environ)


@pytest.mark.parametrize(("options", "kind"), [((), "personal"), (("--app",), "app")])
def test_a_key_is_shown_once_and_opens_until_it_is_revoked(
    options: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    added = keys("add", "ann", *options, file=file)
    key = added.stdout.strip()
    assert (added.exit_code, f"The {'application' if options else 'personal'}" in added.stderr) == (0, True)
    ring = ApiKeyStore(str(file))
    found = ring.find(key)
    assert found is not None
    assert found.kind == kind
    assert key not in file.read_text()
    listed = keys("list", file=file)
    assert key not in listed.output + added.stderr
    assert listed.stdout.startswith(f"ann  {kind}  added 20")
    assert keys("revoke", "ann", file=file).exit_code == 0
    assert ring.reload_if_changed()
    assert ring.find(key) is None
    assert keys("list", file=file).stdout == ""


def test_a_keys_terms_stand_in_its_file_and_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    words = (
        "--scope read --scope chat --model big --messages-per-day 5 --tokens-per-day 9 --expires 2100-01-31"
    )
    assert keys("add", "ann", *words.split(), file=file).exit_code == 0
    keys("add", "old", "--expires", "2001-01-01", file=file)
    keys("add", "olga", "--admin", "--expires", "30d", file=file)
    ann, old, olga = keys("list", file=file).stdout.splitlines()
    prefix = "ann  personal  expires=2100-01-31T00:00:00Z  scopes=chat|read  models=big  "
    assert ann.startswith(f"{prefix}messages_per_day=5  tokens_per_day=9  added 20")
    assert "(expired)" in old
    assert olga.startswith("olga  admin  expires=20")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--expires soon", "a time is a date"),
        ("--scope all", "is not one of"),
        ("--tokens-per-day 0", "0 is not in the range"),
        ("--model a|b,c", "names without white space"),
        ("--admin --scope read", "An admin key takes no scopes"),
    ],
)
def test_terms_that_a_key_can_not_have_are_told_and_no_key_is_made(
    words: str, message: str, tmp_path: Path
) -> None:
    refused = keys("add", "ann", *words.split(), file=tmp_path / "keys")
    assert (refused.exit_code > 0, message in refused.stderr, refused.stdout) == (True, True, ""), (
        refused.stderr
    )
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "a b"), "A name must be"),
        (("add", "ann"), "ann has a key already"),
        (("revoke", "bob"), "Key not found: bob"),
    ],
)
def test_what_can_not_be_done_is_told_and_changes_nothing(
    arguments: tuple[str, str], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    keys("add", "ann", "--file", str(file), file=None)
    before = file.read_text()
    refused = keys(*arguments, file=file)
    assert (refused.exit_code, message in refused.stderr) == (1, True)
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("file", "status", "message"),
    [
        (None, 2, "name the file"),
        (f"ann:{'0' * 64}", 2, "is a list here"),
        ("/nowhere/keys", 1, "No such file"),
    ],
)
def test_where_there_is_no_file_it_is_told(file: str | None, status: int, message: str) -> None:
    refused = keys("list", file=file)
    assert (refused.exit_code, message in refused.stderr) == (status, True)


def test_a_new_file_is_its_makers_alone_and_an_old_one_stays_whose_it_was(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    add_key(file, "ann")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o640)
    add_key(file, "bob")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    add_key(tmp_path / "link", "ann")
    assert (tmp_path / "link").is_symlink()
    assert [key.name for key in listed_keys(tmp_path / "real")] == ["ann"]


def test_what_people_wrote_into_the_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# the keys of our bots")
    add_key(file, "ann")
    revoke_key(file, "ann")
    assert file.read_text() == "# the keys of our bots\n"


def test_two_operators_at_once_lose_nothing(tmp_path: Path) -> None:
    file, names = tmp_path / "keys", ["ann", "bob", "cat", "dan"]
    with ThreadPoolExecutor(len(names)) as operators:
        assert len(set(operators.map(lambda name: add_key(file, name), names))) == len(names)
    assert {key.name for key in listed_keys(file)} == set(names)


def test_a_file_that_is_wrong_already_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("ann:msk_raw")
    with pytest.raises(InvalidList, match="entry 1 is not NAME:HASH"):
        add_key(file, "bob")
    assert file.read_text() == "ann:msk_raw"


def test_a_change_that_fails_leaves_the_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    add_key(file, "ann")
    before = file.read_text()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused = keys("add", "bob", file=file)
    assert (refused.exit_code, "No space left" in refused.stderr, refused.stdout) == (1, True, "")
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file]
