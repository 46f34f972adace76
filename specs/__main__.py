"""Writes the specifications, or with `--check` says which differ from what the code says: `make specs`, `make check`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from specs import openapi, schemas, settings
from specs.frames import asyncapi, reference, typescript

ROOT = Path(__file__).parent.parent
SERVED = ROOT / "app" / "specifications"


def generated() -> dict[Path, str]:
    """Every file and what is to be in it."""
    frames = schemas.document()
    return {
        SERVED / "openapi.json": _json(openapi.document()),
        SERVED / "asyncapi.yaml": yaml.safe_dump(asyncapi(), sort_keys=False, allow_unicode=True, width=120),
        SERVED / "schemas-v1.json": _json(frames),
        ROOT / "app" / "page" / "client" / "frames.d.ts": typescript(frames["$defs"]),
        ROOT / "docs" / "reference.md": reference(),
        ROOT / "docs" / "settings.md": settings.page(),
    }


def differing() -> list[Path]:
    """The files that say something else."""
    return [path for path, text in generated().items() if not path.exists() or path.read_text() != text]


def main(arguments: list[str]) -> int:
    """Writes or checks; the exit status is 1 where something differs."""
    if "--check" not in arguments:
        for path, text in generated().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return 0
    stale = differing()
    for path in stale:
        sys.stderr.write(
            f"{path.relative_to(ROOT)} differs from the code: run `make specs` and commit what it writes\n"
        )
    return 1 if stale else 0


def _json(document: object) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
