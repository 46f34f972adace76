"""The page's files become few, and their names say what is in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.es_modules import BundleError
from app.page_files import Asset, built, summed

INDEX = """<head>
    <link rel="icon" href="static/icon.svg">
    <link rel="manifest" href="static/app.webmanifest">
    <link rel="stylesheet" href="static/css/a.css">
    <link rel="stylesheet" href="static/css/b.css">
    <script type="module" src="static/main.js"></script>
</head>
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A small page."""
    files = {
        "index.html": INDEX,
        "icon.svg": "<svg/>",
        "app.webmanifest": "{}",
        "css/a.css": '/* gone */\n.a {\n  content: "/* stays */";\n  background: url(../icon.svg);\n}\n',
        "css/b.css": '.b { background: url("data:,"); }\n',
        "main.js": 'import { big } from "./vendor/big.js";\nbig();\n',
        "vendor/big.js": "export const big = () => {};\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def address(path: str, content: str) -> str:
    return f"{summed(path, Asset(path, content.encode()))}"


def test_the_page_names_one_script_one_sheet_and_what_they_need(page: Path) -> None:
    build = built(page)
    icon = address("icon.svg", "<svg/>")
    assert set(build.made) == {"start.js", "style.css"}
    style = (
        f'.a {{\ncontent: "/* stays */";\nbackground: url("{icon}");\n}}\n.b {{ background: url("data:,"); }}'
    )
    assert build.made["style.css"].content.decode() == style
    assert (
        build.pages["index.html"].content.decode()
        == f"""<head>
    <link rel="icon" href="static/{icon}">
    <link rel="manifest" href="static/app.webmanifest">
    <link rel="stylesheet" href="static/{address("style.css", style)}">
    <link rel="modulepreload" href="static/{address("vendor/big.js", "export const big = () => {};" + chr(10))}">
    <script type="module" src="static/{address("start.js", build.made["start.js"].content.decode())}"></script>
</head>
"""
    )


def test_each_page_of_the_folder_has_a_script_and_a_sheet_of_its_own(page: Path) -> None:
    (page / "other.html").write_text(INDEX.replace("main.js", "other.js").replace("a.css", "b.css"))
    (page / "other.js").write_text('import { big } from "./vendor/big.js";')
    build = built(page)
    assert set(build.made) == {"start.js", "style.css", "other-start.js", "other-style.css"}
    assert "static/other-start." in build.pages["other.html"].content.decode()


def test_another_content_has_another_name(page: Path) -> None:
    before = built(page).pages["index.html"].content
    (page / "css" / "b.css").write_text(".b {}")
    assert built(page).pages["index.html"].content != before


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("css/a.css", '@import "b.css";', "app/page/css/a.css: `@import` can't be joined"),
        ("css/a.css", ".a { background: url(gone.png); }", "app/page/css/a.css: it names css/gone.png"),
        ("index.html", INDEX.replace("icon.svg", "gone.svg"), "app/page/index.html: it names gone.svg"),
        ("index.html", "<head></head>", "app/page/index.html: a page must start one module, not 0"),
    ],
)
def test_what_can_t_be_joined_is_named(page: Path, path: str, text: str, why: str) -> None:
    (page / path).write_text(text)
    with pytest.raises(BundleError, match=re.escape(why)):
        built(page)
