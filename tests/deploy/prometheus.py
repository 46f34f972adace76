"""A real Prometheus over real servers, which looks often and alerts soon: the shipped rules with shorter times."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.reverse_proxy import DEPLOY
from tests.server_process import free_port

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
RULES = DEPLOY / "prometheus" / "alerts.yml"
LOOK_S = 1.0
"""Also how long a look may take, which is long on a busy machine."""
WINDOW_S = 10
WAIT_S = 120.0


def rules() -> list[dict[str, Any]]:
    """The shipped rules."""
    document = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def hurried(expression: str) -> str:
    """An expression that looks back for seconds instead of minutes; its thresholds are the shipped ones."""
    return re.sub(r"\[\d+m\]", f"[{WINDOW_S}s]", expression)


class Prometheus:
    """One that runs. `jobs`: what it scrapes, by job."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression gives now. Raises AssertionError where it can't be evaluated."""
        answer = self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def alerts(self) -> set[str]:
        """The names of those that fire."""
        alerts = self._get("/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Waits until something is seen by it, which has no event to wait for."""
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < deadline, f"{what}; these alerts fire: {self.alerts()}"
            time.sleep(LOOK_S / 2)

    def until_fires(self, *names: str) -> None:
        """Waits until each of these alerts has fired."""
        fired: set[str] = set()

        def all_of_them() -> bool:
            fired.update(self.alerts())
            return set(names) <= fired

        self.until(all_of_them, f"of {names} not all fired")

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}{path}", timeout=30) as answer:
            return json.load(answer)


@contextmanager
def running_prometheus(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Runs it over targets, `host:port`, with the shipped rules in a hurry."""
    assert PROMETHEUS is not None
    (folder / "alerts.yml").write_text(yaml.safe_dump({"groups": [_group()]}))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(_config(targets)))
    port = free_port()
    command = (
        *(PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_ready(port, process, folder)
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _group() -> Mapping[str, Any]:
    hasty = [rule | {"expr": hurried(rule["expr"]), "for": "0s"} for rule in rules()]
    return {"name": "midstream", "interval": f"{LOOK_S * 1000:.0f}ms", "rules": hasty}


def _config(targets: Sequence[str]) -> Mapping[str, Any]:
    every = f"{LOOK_S * 1000:.0f}ms"
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "midstream", "static_configs": [{"targets": list(targets)}]}],
    }


def _wait_ready(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.05)  # polling a process has no event to wait for
    raise AssertionError("Prometheus is not ready")
