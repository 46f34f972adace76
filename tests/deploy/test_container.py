"""The container's recipe and the compose files, as far as they can be checked without building them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

BIN = Path(sys.executable).parent


def seconds(value: str) -> int:
    return int(value.removesuffix("s"))


@pytest.fixture
def compose(deploy: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((deploy / "compose.yaml").read_text())
    return document


@pytest.fixture
def dockerfile(deploy: Path) -> str:
    return (deploy / "Dockerfile").read_text()


def test_hadolint_finds_nothing_in_the_dockerfile(deploy: Path) -> None:
    linted = subprocess.run(
        [BIN / "hadolint", "--no-color", deploy / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (linted.returncode, linted.stdout) == (0, "")


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml", "compose.vllm.yaml"])
def test_compose_files_keep_to_the_compose_schema(deploy: Path, name: str) -> None:
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(deploy / name)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_compose_waits_for_the_drain_before_it_kills(compose: dict[str, Any]) -> None:
    midstream = compose["services"]["midstream"]
    drain_s = midstream["environment"]["MIDSTREAM_DRAIN_TIMEOUT"].partition(":-")[2].removesuffix("}")
    assert seconds(midstream["stop_grace_period"]) >= seconds(drain_s) + 10


def test_nothing_is_published_beyond_loopback(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_service_is_watched_and_bounded(compose: dict[str, Any], dockerfile: str) -> None:
    assert "HEALTHCHECK" in dockerfile
    for name, service in compose["services"].items():
        assert "mem_limit" in service
        assert service["read_only"]
        assert "healthcheck" in service or name == "midstream"


def test_the_store_keeps_what_it_acknowledged_and_evicts_nothing(compose: dict[str, Any]) -> None:
    command = compose["services"]["redis"]["command"]
    assert "--appendonly yes --appendfsync always" in command
    assert "--maxmemory-policy noeviction" in command


def test_every_image_is_pinned_to_a_patch_release(compose: dict[str, Any], dockerfile: str) -> None:
    stages = set(re.findall(r" AS (\S+)", dockerfile))
    bases = set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) - stages
    images = {service["image"] for service in compose["services"].values() if "build" not in service}
    assert bases | images
    assert all(re.search(r":\d+\.\d+\.\d+", image) for image in bases | images)


def stage_of(dockerfile: str, target: str) -> str:
    return dockerfile.partition(f"FROM runtime AS {target}\n")[2].partition("\nFROM ")[0]


def test_the_cuda_image_can_compile_triton_kernels_and_keep_them(
    dockerfile: str, compose: dict[str, Any], deploy: Path
) -> None:
    stage = stage_of(dockerfile, "cuda")
    assert re.search(r"apt-get install .*\bgcc libc6-dev\b", stage)
    (cache,) = re.findall(r"TRITON_CACHE_DIR=(\S+)", stage)
    (volumes,) = re.findall(r"^VOLUME (.*)$", dockerfile, re.MULTILINE)
    volume = f"/{Path(cache).parts[1]}"
    assert volume in json.loads(volumes)  # which the user of the image owns
    assert f"{volume.strip('/')}:{volume}" in compose["services"]["midstream"]["volumes"]
    assert f"mountPath: {volume}}}" in (deploy / "kubernetes" / "gpu" / "engine.yaml").read_text()


@pytest.mark.parametrize("target", ["gateway", "cpu", "cuda"])
def test_each_image_runs_as_an_ordinary_user(dockerfile: str, target: str) -> None:
    stage = stage_of(dockerfile, target)
    assert f"COPY --from=packages-{target} /opt/midstream /opt/midstream\n" in stage
    assert "\nUSER 10001:10001\n" in stage


@pytest.mark.parametrize(
    ("target", "wheel"),
    [
        ("gateway", "midstream_gateway-*.whl)[crypto,fast]"),
        ("cpu", "server-*.whl)[gguf]"),
        ("cuda", "server-*.whl)[gguf]"),
    ],
)
def test_each_image_installs_the_built_wheels_with_the_pins(dockerfile: str, target: str, wheel: str) -> None:
    stage = dockerfile.partition(f" AS packages-{target}\n")[2].partition("\nFROM ")[0]
    assert "--constraint constraints.txt" in stage
    assert "/wheels/midstream-*.whl" in stage
    assert wheel in stage
    assert " ./midstream ./distributions/gateway .\n" in dockerfile


def test_the_service_itself_receives_sigterm(dockerfile: str) -> None:
    assert "\nSTOPSIGNAL SIGTERM\n" in dockerfile
    assert '\nENTRYPOINT ["midstream"]\n' in dockerfile


def test_only_the_service_reaches_its_store(deploy: Path, compose: dict[str, Any]) -> None:
    """The store asks for no password."""
    files = [yaml.safe_load(path.read_text()) for path in deploy.glob("compose*.yaml")]
    services = [(name, one) for file in files for name, one in file.get("services", {}).items()]
    assert {name for name, one in services if "store" in one.get("networks", [])} == {"midstream", "redis"}
    assert compose["services"]["redis"]["networks"] == ["store"]
    assert compose["networks"]["store"]["internal"]


@pytest.mark.parametrize("name", ["compose.yaml", "compose.vllm.yaml", "compose.monitoring.yaml"])
def test_no_service_has_capabilities_that_it_does_not_need(
    deploy: Path, name: str, compose: dict[str, Any]
) -> None:
    services = yaml.safe_load((deploy / name).read_text())["services"]
    for service, changes in services.items():
        one = compose["services"].get(service, {}) | changes
        if "image" in one:
            assert (one["cap_drop"], one["security_opt"]) == (["ALL"], ["no-new-privileges:true"]), service
