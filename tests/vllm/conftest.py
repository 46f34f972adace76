"""A real gateway with a real vLLM below it, shared by the tests of this folder: it takes most of a minute to start."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import save_file

from app.models import VLLM_PYTHON
from app.settings import DEMO_MODEL
from tests import server_process
from tests.server_process import ServerProcess, serving

ARGUMENTS = "enforce-eager max-model-len=2048 max-num-queued-reqs=2"
"""Not compiled, which saves half of its start; more than two requests at once are turned away."""
START_S = 600.0


PYTHON = os.environ.get("VLLM_PYTHON", str(VLLM_PYTHON))


@pytest.fixture(scope="session", autouse=True)
def made() -> None:
    """Nothing here runs where nobody made the environment."""
    if not Path(PYTHON).exists():
        pytest.skip("`make vllm` was not run")


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory, made: None) -> Iterator[ServerProcess]:
    """The gateway. A test that ends vLLM's process leaves it to bring that back."""
    with vllm_below(tmp_path_factory.mktemp("vllm"), ARGUMENTS) as server:
        yield server


@pytest.fixture
def adapted(tmp_path: Path, made: None) -> Iterator[ServerProcess]:
    """Another gateway, whose vLLM has the model on two devices, as processors are to it, and an adapter for it."""
    arguments = f"enforce-eager max-model-len=2048 enable-lora max-lora-rank=8 lora-modules=support={adapter(tmp_path)} tensor-parallel-size=2"
    with vllm_below(tmp_path, arguments) as server:
        yield server


@contextmanager
def vllm_below(folder: Path, arguments: str) -> Iterator[ServerProcess]:
    """A gateway with a vLLM of these arguments."""
    environ = {
        "MIDSTREAM_ENGINE_ARG": arguments,
        "MIDSTREAM_ENGINE": PYTHON,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "READY_S", START_S)
        with serving(folder, environ) as server:
            yield server


def adapter(folder: Path) -> Path:
    """A LoRA adapter for the demo model that changes nothing, in the form that PEFT writes."""
    place, config = folder / "adapter", json.loads((DEMO_MODEL / "config.json").read_text())
    place.mkdir()
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.ones(8, config["hidden_size"])
        weights[f"{name}.lora_B.weight"] = torch.zeros(config["num_attention_heads"] * config["head_dim"], 8)
    save_file(weights, place / "adapter_model.safetensors")
    reported = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 8,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
    }
    (place / "adapter_config.json").write_text(json.dumps(reported))
    return place


class LaunchedVllm:
    """The vLLM that runs now below a gateway, as the system and its own figures tell of it."""

    def __init__(self, gateway: ServerProcess) -> None:
        assert gateway.process is not None
        self.pids = sorted(_below(gateway.process.pid, "vllm"))
        self.server = next(
            pid
            for pid in self.pids
            if "--port=" in server_process.command_of(pid)
            and "vllm_keeper.py" not in server_process.command_of(pid)
        )
        self.titles = [server_process.command_of(pid) for pid in self.pids]
        self.core = next(pid for pid in self.pids if "EngineCore" in server_process.command_of(pid))
        found = re.search(r"--port=(\d+)", server_process.command_of(self.server))
        assert found is not None
        self.url = f"http://127.0.0.1:{found[1]}"

    def is_idle(self) -> bool:
        """Whether it has nothing to do by its own word."""
        return not (self.figure("num_requests_running") or self.figure("num_requests_waiting"))

    def left(self) -> list[int]:
        """Which of its processes live."""
        return [pid for pid in self.pids if Path(f"/proc/{pid}").exists()]

    def figure(self, name: str) -> float:
        """One of its metrics."""
        text = httpx.get(f"{self.url}/metrics", trust_env=False).text
        found = re.search(rf"^vllm:{name}{{[^}}]*}} (\S+)", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])


@pytest.fixture
def vllm(gateway: ServerProcess) -> LaunchedVllm:
    """The vLLM that serves this test."""
    gateway.bring_back()
    return LaunchedVllm(gateway)


def _below(pid: int, words: str) -> Iterator[int]:
    """The processes below one, where these words are in their commands, and those below them."""
    for child in server_process.children_of(pid):
        if words in server_process.command_of(child).lower():
            yield child
            yield from _below(child, "")
