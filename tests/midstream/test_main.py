"""`python -m midstream` where the client alone is installed."""

from __future__ import annotations

import pytest

from midstream import __main__ as program


def test_a_missing_part_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "PARTS", ("asyncio", "no_such_part"))
    with pytest.raises(SystemExit, match=r"needs no_such_part: pip install 'midstream\[terminal\]'"):
        program.main()


def test_its_help_is_that_of_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["midstream", "--help"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 0
    assert "Usage: python -m midstream [OPTIONS] [URL]" in capsys.readouterr().out
