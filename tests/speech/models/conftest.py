"""Each checkpoint is made once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from speech.samples import Samples
from tests.speech.models import checkpoints


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """What is as small as this is computed faster by one thread, on a busy machine by far."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.whisper(tmp_path_factory.mktemp("speech") / "whisper-tiny-random")


@pytest.fixture(scope="session")
def moonshine_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.moonshine(tmp_path_factory.mktemp("speech") / "moonshine-random")


@pytest.fixture(scope="session")
def vits_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.vits(tmp_path_factory.mktemp("speech") / "vits-random", speakers=2)


def noise(seconds: float, seed: int = 0) -> Samples:
    """Sound whose loudness changes, so that it has quiet moments."""
    random = np.random.default_rng(seed)
    count = int(seconds * 16_000)
    loudness = np.repeat(random.uniform(0, 1, count // 1600 + 1), 1600)[:count]
    return (random.normal(0, 3000, count) * loudness).astype(np.int16)
