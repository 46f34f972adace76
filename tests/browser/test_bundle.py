"""The page's bundle is the one that its sources make, and the check would tell if it were not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from page import check


def test_the_committed_bundle_is_the_one_of_its_sources() -> None:
    assert check.differences() == []


def test_an_edited_or_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("same", "edited"):
        (tmp_path / name).write_bytes(b"as built")
    sums = dict.fromkeys(("same", "edited", "gone"), hashlib.sha256(b"as built").hexdigest())
    (tmp_path / "edited").write_bytes(b"by hand")
    assert check.changed(tmp_path, sums) == ["edited", "gone"]


def test_a_difference_ends_with_status_1_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "differences", lambda: ["page/vendor.js is not what the bundle was made of"])
    assert check.main([]) == 1
    said = capsys.readouterr().err
    assert "page/vendor.js" in said
    assert "npm ci" in said


def test_the_bundle_names_what_it_contains_and_under_which_licences() -> None:
    licences = (check.BUNDLE / "LICENSES.txt").read_text()
    for name in ("marked", "dompurify", "highlight.js", "katex"):
        assert f"{name} " in licences
    assert "Apache License" in licences
