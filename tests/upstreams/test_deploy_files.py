"""The Compose file for vLLM keeps to its schema, and says the same as the upstreams that it names."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from app.models import tables_of
from app.settings import Settings
from engine.upstream.options import UpstreamOptions
from tools.vllm_install import VERSION

DEPLOY = Path(__file__).parents[2] / "deploy"
BIN = Path(sys.executable).parent


def loaded(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def upstreams(text: str) -> dict[str, UpstreamOptions]:
    tables = tables_of(Settings(tables=tomllib.loads(text)))
    return {one.name: one for one in tables.upstream}


def test_the_compose_file_for_vllm_keeps_to_the_compose_schema() -> None:
    command = [
        BIN / "check-jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        DEPLOY / "compose.vllm.yaml",
    ]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_each_vllm_is_an_upstream_that_says_what_it_was_started_with() -> None:
    compose = loaded("compose.vllm.yaml")
    named = upstreams(compose["configs"]["midstream"]["content"])
    servers = {name: one for name, one in compose["services"].items() if name != "midstream"}
    documented = upstreams((DEPLOY / "midstream.toml").read_text())["vllm-a"]
    assert set(named) == set(servers)
    for name, upstream in named.items():
        assert servers[name]["image"] == f"vllm/vllm-openai:${{VLLM_TAG:-v{VERSION}}}", (
            "the one that is tested"
        )
        words = servers[name]["command"].split()
        requested = dict(pairwise(words))
        assert upstream.url == f"http://{name}:8000/v1"
        assert upstream.model == requested["--model"]
        assert upstream.context_tokens == int(requested["--max-model-len"])
        assert upstream.max_requests == int(requested["--max-num-seqs"])
        assert upstream.features == documented.features
        assert requested["--scheduling-policy"] == "priority"
        calls, thinks = "--enable-auto-tool-choice" in words, "--reasoning-parser" in words
        assert (upstream.features.tools, upstream.features.reasoning) == ("all", True)
        assert calls
        assert thinks
        assert "ports" not in servers[name], "only Midstream reaches it"


def test_the_service_is_told_of_the_file_and_the_key() -> None:
    compose = loaded("compose.vllm.yaml")
    midstream = compose["services"]["midstream"]
    [mounted] = midstream["configs"]
    assert mounted["target"] == midstream["environment"]["MIDSTREAM_CONFIG"]
    keys = {one.key_variable for one in upstreams(compose["configs"]["midstream"]["content"]).values()}
    assert keys <= set(midstream["environment"])
