"""A CUDA device, and the tiny model on it: whoever asks for it where there is none is skipped, and says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.execution.executor import LoadedModel
from engine.kv_cache import KVBudget
from engine.loading.probe import probe
from engine.messages import Params
from engine.model.fused_decoder import FusedDecoder
from tests.engine.conftest import small_tokenizer
from tests.engine.families import VOCABULARY, WINDOW
from tests.engine.tiny_models import make

Loads = Callable[[torch.dtype], LoadedModel]


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("NOT TESTED: there is no CUDA device here")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def loaded(cuda: torch.device) -> Loads:
    """Load the tiny Llama as the loader does: its fused form, once that agrees with the module."""

    def load(dtype: torch.dtype) -> LoadedModel:
        probed = probe(make("llama").to(cuda, dtype), VOCABULARY)
        assert isinstance(probed.module, FusedDecoder)
        budget = KVBudget(6, WINDOW, WINDOW, probed.bytes_per_token)
        return LoadedModel(
            "llama", probed.module, small_tokenizer(), Params(), frozenset(), 4, VOCABULARY, budget
        )

    return load
