"""The files for vLLM and Ray Serve LLM keep to their schemas, and say the same as the upstreams that name them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import yaml

from app.models import tables_of
from app.settings import Settings
from engine.upstream.options import UpstreamOptions
from tools.vllm_install import VERSION

DEPLOY = Path(__file__).parents[2] / "deploy"
BIN = Path(sys.executable).parent


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table whose fields are those of Ray's documentation, as far as the file has them."""


class Scaling(Strict, frozen=True):
    min_replicas: int
    max_replicas: int
    target_ongoing_requests: float


class RequestRouter(Strict, frozen=True):
    request_router_class: str


class Deployment(Strict, frozen=True):
    max_ongoing_requests: int
    autoscaling_config: Scaling
    request_router_config: RequestRouter


class Loading(Strict, frozen=True):
    model_id: str
    model_source: str


class Llm(Strict, frozen=True):
    model_loading_config: Loading
    accelerator_type: str
    engine_kwargs: dict[str, Any]
    deployment_config: Deployment
    experimental_configs: dict[str, int]


class Arguments(Strict, frozen=True):
    llm_configs: tuple[Llm, ...]


class Application(Strict, frozen=True):
    name: str
    route_prefix: str
    import_path: str
    args: Arguments


class Http(Strict, frozen=True):
    host: str
    port: int


class ServeConfig(Strict, frozen=True):
    proxy_location: str
    http_options: Http
    applications: tuple[Application, ...]


def loaded(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def upstreams(text: str) -> dict[str, UpstreamOptions]:
    tables = tables_of(Settings(tables=tomllib.loads(text)))
    return {one.name: one for one in tables.upstream}


def test_ray_serves_what_its_upstream_says() -> None:
    config = msgspec.convert(loaded("ray_serve_llm.yaml"), ServeConfig)
    [application] = config.applications
    [llm] = application.args.llm_configs
    upstream = upstreams((DEPLOY / "midstream.toml").read_text())["ray"]
    assert application.import_path == "ray.serve.llm:build_openai_app"
    assert upstream.url.endswith(f":{config.http_options.port}/v1")
    assert upstream.model == llm.model_loading_config.model_id
    assert upstream.context_tokens == llm.engine_kwargs["max_model_len"]
    assert llm.experimental_configs["stream_batching_interval_ms"] == 0, "an even pace begins there"


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
