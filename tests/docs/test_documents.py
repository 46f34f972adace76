"""What a visitor reads is short, fits a screen, and leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.documents import ARCHITECTURE, DESIGN, DOCUMENTS, GUIDES, PROTOCOL, README, ROOT, prose

SHORT = [README, ARCHITECTURE, PROTOCOL, *GUIDES, *DESIGN]
COLUMNS = 100
CELL = 80


def named(document: Path) -> str:
    return str(document.relative_to(ROOT))


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(README.read_text().splitlines()) < 120


@pytest.mark.parametrize("document", SHORT, ids=named)
def test_lines_fit_a_screen(document: Path) -> None:
    assert [line for line in document.read_text().splitlines() if len(line) > COLUMNS] == []


@pytest.mark.parametrize("document", SHORT, ids=named)
def test_cells_of_tables_are_short(document: Path) -> None:
    rows = [line for line in prose(document).splitlines() if line.startswith("|")]
    assert [cell for row in rows for cell in row.split("|") if len(cell.strip()) > CELL] == []


@pytest.mark.parametrize("guide", GUIDES, ids=named)
def test_the_readme_leads_to_every_guide(guide: Path) -> None:
    assert f"]({named(guide)})" in README.read_text()


@pytest.mark.parametrize("page", DESIGN, ids=named)
def test_the_architecture_leads_to_its_details(page: Path) -> None:
    assert f"]({named(page)})" in ARCHITECTURE.read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(document))
    assert [target for target in targets if not leads_somewhere(document, target)] == []


def leads_somewhere(document: Path, target: str) -> bool:
    """Whether a relative link has its file, and its anchor there. Others' sites are not asked."""
    if re.match(r"[a-z]+:", target):
        return True
    path, _, anchor = target.partition("#")
    file = (document.parent / path).resolve() if path else document
    return file.exists() and (not anchor or anchor in anchors(file))


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives to a document's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
