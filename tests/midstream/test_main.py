"""`python -m midstream` and `midstream` where the client alone is installed."""

from __future__ import annotations

import pytest

from midstream import __main__ as program


@pytest.fixture(autouse=True)
def without_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SERVICE", "no_such_service")


def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """The exit code of `midstream`, and what it wrote to either stream."""
    monkeypatch.setattr("sys.argv", ["midstream", *arguments])
    with pytest.raises(SystemExit) as ended:
        program.command()
    written, code = capsys.readouterr(), ended.value.code
    if isinstance(code, str):  # Python prints it, and exits with 1
        return 1, code
    return code or 0, written.out + written.err


def test_the_module_s_help_is_that_of_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["midstream", "--help"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 0
    assert "Usage: python -m midstream [OPTIONS] [URL]" in capsys.readouterr().out


def test_the_command_chats(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(monkeypatch, capsys, "chat", "--help")
    assert (code, "Usage: midstream chat [OPTIONS] [URL]" in text) == (0, True)


@pytest.mark.parametrize("arguments", [("serve",), ("serve", "--model", "x"), ("doctor",)])
def test_commands_of_the_service_name_what_to_install(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = printed(monkeypatch, capsys, *arguments)
    assert code == 1
    assert f"`midstream {arguments[0]}` is a command of the service" in text
    assert "pip install midstream-server" in text


def test_the_service_s_command_is_run_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "SERVICE", "midstream_server")
    code, text = printed(monkeypatch, capsys, "--help")
    assert (code, "serve" in text, "chat" in text) == (0, True, True)
