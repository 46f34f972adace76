"""What is committed of the page is what its sources make, and the check would tell if it were not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from page import check


def test_what_is_committed_is_what_its_sources_make() -> None:
    assert list(check.complaints()) == []


def test_an_edited_or_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("same", "edited"):
        (tmp_path / name).write_bytes(b"as built")
    sums = dict.fromkeys(("same", "edited", "gone"), hashlib.sha256(b"as built").hexdigest())
    (tmp_path / "edited").write_bytes(b"by hand")
    assert check.changed(tmp_path, sums) == ["edited", "gone"]


@pytest.mark.parametrize("made", [check.BUNDLES, check.ICONS])
def test_a_stale_build_ends_with_status_1_and_says_what_to_do(
    made: check.Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = json.loads(made.record.read_text())
    source = next(iter(sums["sources"]))
    (tmp_path / "record.json").write_text(json.dumps({"sources": {source: "another"}, "files": {}}))
    for name, one in (("BUNDLES", check.BUNDLES), ("ICONS", check.ICONS)):
        monkeypatch.setattr(
            check, name, one._replace(record=tmp_path / "record.json") if one is made else one
        )
    assert check.main([]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith(f"{source} is not what {made.what} was made of")
    assert lines[1:] == [made.remedy]


def test_a_module_that_can_t_be_joined_ends_with_status_1_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "PAGE", tmp_path)
    (tmp_path / "index.html").write_text('<script type="module" src="static/main.js"></script>')
    (tmp_path / "main.js").write_text("\nexport default 1;")
    assert check.main([]) == 1
    assert "app/page/main.js: write" in capsys.readouterr().err


def test_the_bundle_names_what_it_contains_and_under_which_licences() -> None:
    licences = (check.BUNDLE / "LICENSES.txt").read_text()
    for name in ("marked", "dompurify", "highlight.js", "katex"):
        assert f"{name} " in licences
    assert "Apache License" in licences
