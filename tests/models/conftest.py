"""The real model, fetched and converted as `midstream serve --model smollm2` does it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.models import convert, with_folder
from app.settings import Settings
from tests.models.reference import Reference
from tests.server_process import ServerProcess, serving

CACHE = Path(__file__).parents[2] / ".cache"
"""A data folder: `models` in it has the converted models."""


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct."""
    settings = Settings(model="smollm2", data_dir=str(CACHE))
    convert(settings)
    return Path(with_folder(settings).model_path)


@pytest.fixture(scope="session")
def reference(smollm2: Path) -> Reference:
    """transformers' model, in float32."""
    return Reference(smollm2)


@pytest.fixture(scope="session")
def service(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`midstream serve --model smollm2` in float32, over the model that was converted before."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "data" / "models").mkdir(parents=True)
    (folder / "data" / "models" / "smollm2").symlink_to(smollm2)
    environ = {"MIDSTREAM_DTYPE": "float32", "MIDSTREAM_TITLES": "words", "MIDSTREAM_KV_MEMORY": str(2**30)}
    with serving(folder, environ, command=("app", "serve", "--model", "smollm2")) as started:
        yield started
