"""`make bench-engine`: unknown options are refused before anything is started."""

from __future__ import annotations

import pytest

from tests.bench.engine.__main__ import main


def test_a_figure_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--only", "beauty"])
    with pytest.raises(SystemExit):
        main()
