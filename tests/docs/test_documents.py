"""What a visitor reads is short, fits a screen, and leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.documents import ARCHITECTURE, DESIGN, GUIDES, PAPERS, PROTOCOL, README, ROOT, prose

SHORT = [README, ARCHITECTURE, PROTOCOL, *GUIDES, *DESIGN]
COLUMNS = 100
CELL = 80


def named(paper: Path) -> str:
    return str(paper.relative_to(ROOT))


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(README.read_text().splitlines()) < 120


@pytest.mark.parametrize("paper", SHORT, ids=named)
def test_lines_fit_a_screen(paper: Path) -> None:
    assert [line for line in paper.read_text().splitlines() if len(line) > COLUMNS] == []


@pytest.mark.parametrize("paper", SHORT, ids=named)
def test_cells_of_tables_are_short(paper: Path) -> None:
    rows = [line for line in prose(paper).splitlines() if line.startswith("|")]
    assert [cell for row in rows for cell in row.split("|") if len(cell.strip()) > CELL] == []


@pytest.mark.parametrize("guide", GUIDES, ids=named)
def test_the_readme_leads_to_every_guide(guide: Path) -> None:
    assert f"]({named(guide)})" in README.read_text()


@pytest.mark.parametrize("page", DESIGN, ids=named)
def test_the_architecture_leads_to_its_details(page: Path) -> None:
    assert f"]({named(page)})" in ARCHITECTURE.read_text()


@pytest.mark.parametrize("paper", PAPERS, ids=named)
def test_links_lead_somewhere(paper: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(paper))
    assert [target for target in targets if not leads_somewhere(paper, target)] == []


def leads_somewhere(paper: Path, target: str) -> bool:
    """Whether a relative link has its file, and its anchor there. Others' sites are not asked."""
    if re.match(r"[a-z]+:", target):
        return True
    path, _, anchor = target.partition("#")
    file = (paper.parent / path).resolve() if path else paper
    return file.exists() and (not anchor or anchor in anchors(file))


def anchors(paper: Path) -> set[str]:
    """The anchors that GitHub gives to a paper's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(paper), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
