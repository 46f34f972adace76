"""The shipped files, and a real nginx over them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.nginx_site import DEPLOY, NGINX, Site, make_site


@pytest.fixture
def deploy() -> Path:
    return DEPLOY


@pytest.fixture
def site(tmp_path: Path) -> Callable[[int], Site]:
    """Make a site whose upstream is a port of loopback."""
    if NGINX is None:
        pytest.skip("nginx is NOT INSTALLED: its configuration goes untested (apt install nginx)")
    return lambda upstream_port: make_site(tmp_path, upstream_port)


@pytest.fixture
def run_nginx() -> Iterator[Callable[[Site], None]]:
    """Start nginx over a site and return once its workers accept; all are stopped at the test's end."""
    running: list[subprocess.Popen[str]] = []

    def run(site: Site) -> None:
        process = subprocess.Popen(site.command(), stderr=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "start worker process " in line:
                return
        pytest.fail(f"nginx ended at its start: {''.join(said)}")

    yield run
    for process in running:
        process.terminate()
        process.communicate(timeout=10)
