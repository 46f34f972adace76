"""Builds the documentation as a site, strictly: `python docs/site/build.py [FOLDER]`. The service has it at `/docs`.

A link or an anchor that leads nowhere ends the build. The site is made by Zensical, of copies of the documents. It fetches
nothing from anywhere else, and no page has inline scripts: it works under the service's Content-Security-Policy.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from hashlib import sha256
from pathlib import Path
from posixpath import relpath

from pages import documents, page

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SITE = ROOT / "app" / "docs"
BESIDE = ("pictures", "bench")
"""Folders of `docs/` whose files are copied into the site unchanged."""
SCRIPTS = "assets/within"
SERVED = "/docs"
"""Where the service has the site."""

_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_SHEET = re.compile(r'(\w+)\.appendChild\(\w+\("style",\{\},(\w+)\.toString\(\)\)\)')
"""How the theme's script gives the search its style: as an element, which the policy does not allow."""
_ADOPTED = r"\1.adoptedStyleSheets=[new CSSStyleSheet],\1.adoptedStyleSheets[0].replaceSync(\2)"
_ALIGNED = re.compile(r' style="text-align: (left|right|center);"')


class NotBuilt(Exception):
    """There is no site. The message says why."""


def build(site: Path, root: Path = ROOT) -> int:
    """Build the site of a repository into a folder, in place of what is there; return how many pages it has. Raises NotBuilt."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        pages = _stage(root, stage)
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "zensical.toml"]
        made = subprocess.run(command, cwd=stage, capture_output=True, text=True, check=False)  # noqa: S603 - ours
        if made.returncode:
            raise NotBuilt(_without_colours(made.stdout + made.stderr).partition("Traceback")[0].strip())
        for html in (stage / "site").rglob("*.html"):
            html.write_text(_without_scripts(html, stage / "site"))
        missing = stage / "site" / "404.html"
        missing.write_text(_from_anywhere(missing.read_text()))
        _without_style(stage / "site")
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(stage / "site", site)
    return pages


def _stage(root: Path, stage: Path) -> int:
    """Write the pages, and the files of `BESIDE`, into a folder; return how many pages there are."""
    config = (HERE / "zensical.toml").read_text()
    named = documents(tomllib.loads(config)["project"]["nav"])
    if missing := [document for document in named if not (root / document).is_file()]:
        raise NotBuilt(f"The navigation names what is not there: {', '.join(missing)}.")
    (stage / "zensical.toml").write_text(config)
    docs = root / "docs"
    beside = [path for folder in BESIDE for path in sorted((docs / folder).rglob("*")) if path.is_file()]
    places = named | {str(path.relative_to(root)): str(path.relative_to(docs)) for path in beside}
    for document, place in places.items():
        target = stage / "pages" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if document in named:
            target.write_text(page(document, (root / document).read_text(), places))
        else:
            shutil.copyfile(root / document, target)
    return len(named)


def _without_scripts(html: Path, site: Path) -> str:
    """Return a page whose scripts are files, and whose cells are aligned by attributes: the policy allows nothing inline."""
    here = html.parent.relative_to(site).as_posix()

    def outside(found: re.Match[str]) -> str:
        script = found[1].encode()
        name = f"{SCRIPTS}/{sha256(script).hexdigest()[:16]}.js"
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(script)
        return f'<script src="{relpath(name, here)}"></script>'

    return _ALIGNED.sub(r' align="\1"', _SCRIPT.sub(outside, html.read_text()))


def _from_anywhere(html: str) -> str:
    """Return a page that finds its files from any path: the one for missing pages."""
    return re.sub(r'"/(?!/)', f'"{SERVED}/', html.replace(f'"{SCRIPTS}/', f'"/{SCRIPTS}/'))


def _without_style(site: Path) -> None:
    """Have the search's style adopted, as the policy allows. Raises NotBuilt if the theme now does it another way."""
    (bundle,) = site.glob("assets/javascripts/bundle.*.js")
    script, found = _SHEET.subn(_ADOPTED, bundle.read_text())
    if found != 1:
        raise NotBuilt(
            f"The theme's script has {found} styles instead of 1: look at _SHEET in docs/site/build.py."
        )
    bundle.write_text(script)


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def main(arguments: list[str]) -> int:
    """Build the site, and print where it is."""
    site = Path(arguments[0]) if arguments else SITE
    try:
        pages = build(site)
    except NotBuilt as why:
        print(why, file=sys.stderr)
        return 1
    print(f"{pages} pages in {site}. `make run` serves them at /docs; one that runs has to be restarted.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
