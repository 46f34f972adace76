"""The manifests for Kubernetes: against the API's own schemas, built by the real Kustomize where it is, and held to what drains need."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app.models import tables_of
from app.settings import Settings, option_kinds

Manifest = dict[str, Any]
OVERLAYS = ("base", "gpu", "managed-redis")


@pytest.fixture
def folder(deploy: Path) -> Path:
    return deploy / "kubernetes"


def manifests(file: Path) -> list[Manifest]:
    """What a file declares."""
    return [document for document in yaml.safe_load_all(file.read_text()) if document]


def resources(folder: Path) -> Iterator[Manifest]:
    """All that is declared whole; patches are not."""
    for overlay in OVERLAYS:
        (plan,) = manifests(folder / overlay / "kustomization.yaml")
        for name in plan["resources"]:
            if name.endswith(".yaml"):
                yield from manifests(folder / overlay / name)


def pods(folder: Path) -> dict[str, Manifest]:
    """The pod of each workload, by its name."""
    workloads = (one for one in resources(folder) if one["kind"] in {"Deployment", "StatefulSet"})
    return {one["metadata"]["name"]: one["spec"]["template"] for one in workloads}


def settings_of(file: Path) -> dict[str, str]:
    """The variables of a file that a ConfigMap is made of."""
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if line)


def test_every_manifest_keeps_to_the_api_strictly(folder: Path) -> None:
    checked = list(resources(folder))
    assert len(checked) >= 15
    for manifest in checked:
        kubernetes_validate.validate(manifest, "1.32", strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_builds_it_whole(folder: Path, overlay: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("NOT TESTED: there is no `kubectl` on PATH, whose Kustomize builds these files")
    built = subprocess.run(
        [kubectl, "kustomize", str(folder / overlay)], capture_output=True, text=True, check=True
    )
    whole = list(yaml.safe_load_all(built.stdout))
    for manifest in whole:
        kubernetes_validate.validate(manifest, "1.32", strict=True)
    named = {(one["kind"], one["metadata"]["name"]) for one in whole}
    assert (("StatefulSet", "redis") in named) == (overlay != "managed-redis")
    assert (("Deployment", "engine") in named) == (overlay == "gpu")


def test_every_file_is_part_of_an_overlay(folder: Path) -> None:
    for overlay in OVERLAYS:
        plan = (folder / overlay / "kustomization.yaml").read_text()
        files = {file.name for file in (folder / overlay).iterdir()} - {"kustomization.yaml"}
        assert all(name in plan for name in files)


@pytest.mark.parametrize("name", ["base/settings.env", "gpu/engine.env"])
def test_the_settings_are_ones_that_the_service_takes(folder: Path, name: str) -> None:
    assert Settings.read({"MIDSTREAM_INSECURE": "1"} | settings_of(folder / name))


def test_every_variable_of_a_pod_is_a_setting_or_a_key(folder: Path) -> None:
    known = {f"MIDSTREAM_{name.upper()}" for name in option_kinds()} | {"ENGINE_KEY"}
    files = [*folder.rglob("*.yaml")]
    for manifest in (one for file in files for one in manifests(file)):
        pod = manifest.get("spec", {}).get("template", {}) if manifest["kind"] == "Deployment" else {}
        for container in pod.get("spec", {}).get("containers", ()):
            assert {variable["name"] for variable in container.get("env", ())} <= known


def test_the_gateways_file_of_engines_is_read_as_it_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "a key")
    settings = Settings.read({"MIDSTREAM_CONFIG": str(folder / "gpu" / "midstream.toml")})
    assert [one.name for one in tables_of(settings).upstream] == ["engine"]


@pytest.mark.parametrize(
    ("pod", "settings"), [("gateway", "base/settings.env"), ("engine", "gpu/engine.env")]
)
def test_a_pod_is_taken_out_of_service_before_it_drains_and_killed_only_behind_that(
    folder: Path, pod: str, settings: str
) -> None:
    spec = pods(folder)[pod]["spec"]
    (container,) = spec["containers"]
    ready, alive = container["readinessProbe"], container["livenessProbe"]
    assert (ready["httpGet"]["path"], alive["httpGet"]["path"]) == ("/readyz", "/healthz")
    _, pause_s = container["lifecycle"]["preStop"]["exec"]["command"]
    assert int(pause_s) > ready["periodSeconds"] * ready["failureThreshold"]
    drain_s = int(settings_of(folder / settings)["MIDSTREAM_DRAIN_TIMEOUT"].removesuffix("s"))
    assert spec["terminationGracePeriodSeconds"] >= int(pause_s) + drain_s + 10


def test_no_pod_is_given_variables_that_are_named_like_settings(folder: Path) -> None:
    """Kubernetes makes MIDSTREAM_PORT of a service that is called midstream, and the service takes that for a setting."""
    assert any(
        one["kind"] == "Service" and one["metadata"]["name"] == "midstream" for one in resources(folder)
    )
    for name in ("gateway", "engine"):
        assert pods(folder)[name]["spec"]["enableServiceLinks"] is False


def test_every_pod_runs_as_an_ordinary_user_and_writes_into_its_volumes_alone(folder: Path) -> None:
    for pod in pods(folder).values():
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in pod["spec"]["containers"]:
            held = container["securityContext"]
            assert held["readOnlyRootFilesystem"]
            assert not held["allowPrivilegeEscalation"]
            assert held["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]


def test_selectors_find_a_pod_and_the_store_hears_the_service_alone(folder: Path) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(folder).values()]
    policies = {}
    for one in resources(folder):
        match one["kind"]:
            case "Service":
                assert one["spec"]["selector"] in labels
            case "PodDisruptionBudget":
                assert one["spec"]["selector"]["matchLabels"] in labels
            case "NetworkPolicy":
                policies[one["metadata"]["name"]] = one["spec"]
    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    (rule,) = policies["redis"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app": "midstream", "part": "gateway"}}}]


def test_replicas_come_with_the_queue_and_go_slowly(folder: Path) -> None:
    scalers = [one for one in resources(folder) if one["kind"] == "HorizontalPodAutoscaler"]
    assert {one["spec"]["scaleTargetRef"]["name"] for one in scalers} == {"gateway", "engine"}
    for scaler in scalers:
        requested = [
            one["pods"]["metric"]["name"] for one in scaler["spec"]["metrics"] if one["type"] == "Pods"
        ]
        assert requested == ["midstream_engine_queue"]
        (slowly,) = scaler["spec"]["behavior"]["scaleDown"]["policies"]
        assert (slowly["value"], slowly["type"]) == (1, "Pods")


def test_the_store_is_the_same_as_in_compose(folder: Path, deploy: Path) -> None:
    compose = yaml.safe_load((deploy / "compose.yaml").read_text())["services"]["redis"]
    (container,) = pods(folder)["redis"]["spec"]["containers"]
    assert container["image"] == compose["image"]
    assert ["redis-server", *container["args"]] == [word.strip('"') for word in compose["command"].split()]
