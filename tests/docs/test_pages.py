"""How a document of the repository becomes a page of the site."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.docs.documents import ROOT

PLACES = {
    "README.md": "index.md",
    "docs/tools.md": "tools.md",
    "docs/design/store.md": "design/store.md",
    "docs/pictures/stop.webp": "pictures/stop.webp",
    "deploy/README.md": "deploy.md",
}


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "site" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_navigation_names_papers_wherever_they_lie(pages: ModuleType) -> None:
    nav = [{"Start": [{"Home": "index.md"}]}, {"Guides": [{"Inner": [{"Store": "design/store.md"}]}]}]
    assert pages.documents(nav) == {"README.md": "index.md", "docs/design/store.md": "design/store.md"}


CODE = "```md\n[tools](docs/tools.md)\n```\n"


@pytest.mark.parametrize(
    ("document", "text", "page"),
    [
        ("README.md", "[tools](docs/tools.md)", "[tools](tools.md)"),
        ("README.md", "[tools](docs/tools.md#bounds)", "[tools](tools.md#bounds)"),
        ("README.md", "![Stop](docs/pictures/stop.webp)", "![Stop](pictures/stop.webp)"),
        ("README.md", f"{CODE}[tools](docs/tools.md)\n", f"{CODE}[tools](tools.md)\n"),
        ("README.md", "```mermaid\na --> b\n```\n", "```text\na --> b\n```\n"),
        ("docs/design/store.md", "[up](../../README.md)", "[up](../index.md)"),
        ("docs/tools.md", "[`deploy/`](../deploy/README.md#tune)", "[`deploy/`](deploy.md#tune)"),
        (
            "docs/tools.md",
            "[a module](../app/cli.py), [said](https://a.org)",
            "a module, [said](https://a.org)",
        ),
        ("docs/tools.md", "[below](#bounds)", "[below](#bounds)"),
    ],
)
def test_a_link_leads_to_the_page_or_is_its_words_and_code_stays(
    pages: ModuleType, document: str, text: str, page: str
) -> None:
    assert pages.page(document, text, PLACES) == page
