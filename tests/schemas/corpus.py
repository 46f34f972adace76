"""JSON Schemas of others: the official test suite, as the source distribution of `jsonschema` has it, and those that
`check-jsonschema` carries, as people wrote them."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

CACHE = Path(__file__).parents[2] / ".cache" / "schemas"
DRAFTS = {
    "draft3": "http://json-schema.org/draft-03/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
IN_THE_WILD = "in the wild"


class Case(NamedTuple):
    """A schema, where it is from and what it is called there."""

    group: str
    name: str
    schema: Any

    @property
    def text(self) -> str:
        """The schema as a request has it."""
        return json.dumps(self.schema)


def in_the_wild() -> Iterator[Case]:
    """Yield the schemas of configuration files that `check-jsonschema` carries."""
    root = Path(str(files("check_jsonschema"))) / "builtin_schemas"
    for file in sorted(root.glob("*/*.json")):
        yield Case(IN_THE_WILD, file.stem, json.loads(file.read_text()))


def suite(archive: Path) -> Iterator[Case]:
    """Yield the schemas of the official suite, draft by draft; each names its draft, as it would have to in a request."""
    with tarfile.open(archive) as packed:
        for member in sorted(packed.getmembers(), key=lambda one: one.name):
            folder, _, name = member.name.partition("/json/tests/")[2].partition("/")
            content = packed.extractfile(member) if folder in DRAFTS and name.endswith(".json") else None
            if content is not None:
                yield from _cases(folder, name.removesuffix(".json"), json.load(content))


def fetched() -> Path:
    """Return the source distribution of the `jsonschema` that is installed here. Fetched by pip, once."""
    wanted = version("jsonschema")
    archive = CACHE / f"jsonschema-{wanted}.tar.gz"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "jsonschema",
        ]
        subprocess.run([*command, "--dest", str(CACHE), f"jsonschema=={wanted}"], check=True)
    return archive


def _cases(draft: str, file: str, groups: list[dict[str, Any]]) -> Iterator[Case]:
    for group in groups:
        schema = group["schema"]
        if isinstance(schema, dict):
            schema = {"$schema": DRAFTS[draft], **schema}
        yield Case(draft, f"{file}: {group['description']}", schema)
