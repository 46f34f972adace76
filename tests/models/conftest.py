"""The real model, fetched and converted as `midstream serve --model smollm2` does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import Settings
from app.setup.conversion import convert, with_folder

CACHE = Path(__file__).parents[2] / ".cache"
"""A data folder: `models` in it has the converted models."""


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct."""
    settings = Settings(model="smollm2", data_dir=str(CACHE))
    convert(settings)
    return Path(with_folder(settings).model_path)
