"""Which documents of the repository are pages of the site, and what becomes of their links. Pure.

The documents stay where a reader of the repository looks for them. A link from one to another leads to its page; one to
anything else of the repository, such as a module, becomes its words alone.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

ELSEWHERE = {
    "index.md": "README.md",
    "protocol.md": "PROTOCOL.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "deploy.md": "deploy/README.md",
    "demo-model.md": "demo_model/README.md",
    "examples.md": "examples/README.md",
}
"""Documents that are not in `docs/` under the name of their page, by that name."""

_FENCE = re.compile(r"^ *(```|~~~)")
_DRAWING = re.compile(r"^(```)mermaid$", re.MULTILINE)
"""A diagram, which a script from another site would draw; here its text is shown."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def documents(nav: Collection[Any]) -> dict[str, str]:
    """Return the documents that a navigation names, as paths in the repository, with the paths of their pages in the site."""
    return {ELSEWHERE.get(place, f"docs/{place}"): place for place in _places(nav)}


def page(source: str, text: str, places: Mapping[str, str]) -> str:
    """Return a document as a page. `places`: the site's files, as paths in the site by paths in the repository."""
    here = posixpath.dirname(places[source]) or "."

    def link(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, hash_, anchor = target.partition("#")
        named = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if named not in places:
            return words
        return f"{mark}[{words}]({posixpath.relpath(places[named], here)}{hash_}{anchor})"

    return _outside_code(_DRAWING.sub(r"\1text", text), lambda words: _LINK.sub(link, words))


def _places(nav: Collection[Any]) -> Iterator[str]:
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from _places(value)


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return a text with all but its blocks of code changed by `change`."""
    parts, is_code = [""], False
    for line in text.splitlines(keepends=True):
        is_fence = _FENCE.match(line) is not None
        if is_fence and not is_code:
            parts.append("")
        parts[-1] += line
        if is_fence and is_code:
            parts.append("")
        is_code ^= is_fence
    return "".join(part if _FENCE.match(part) else change(part) for part in parts)
