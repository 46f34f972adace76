"""What Midstream is, in the same sentence wherever somebody first meets it."""

from __future__ import annotations

import json
import tomllib

import click
import pytest

from app.cli import main
from tests.docs.documents import ARCHITECTURE, README, ROOT

SENTENCE = (
    "conversation layer between a chat front end and a language model: users press Stop, reload, switch "
    "devices and lose the network in mid-reply; the model's next prompt is exactly what they saw, once."
)


def description(project: str) -> str:
    return str(tomllib.loads((ROOT / project).read_text())["project"]["description"])


PLACES = {
    "README.md": README.read_text(),
    "ARCHITECTURE.md": ARCHITECTURE.read_text(),
    "gateway's README": (ROOT / "distributions" / "gateway" / "README.md").read_text(),
    "client's README": (ROOT / "midstream" / "README.md").read_text(),
    "server's package": description("pyproject.toml"),
    "gateway's package": description("distributions/gateway/pyproject.toml"),
    "Python client's package": description("midstream/pyproject.toml"),
    "JavaScript client's package": json.loads((ROOT / "app/page/client/package.json").read_text())[
        "description"
    ],
    "--help": main.get_help(click.Context(main)),
    "documents' site": tomllib.loads((ROOT / "docs/site/zensical.toml").read_text())["project"][
        "site_description"
    ],
    "page": (ROOT / "app" / "page" / "index.html").read_text(),
    "installed page": json.loads((ROOT / "app/page/manifest.webmanifest").read_text())["description"],
}


@pytest.mark.parametrize("place", PLACES)
def test_it_is_the_same_sentence(place: str) -> None:
    assert SENTENCE in " ".join(PLACES[place].replace("**", "").split())
