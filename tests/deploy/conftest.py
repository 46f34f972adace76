"""The shipped files, and what they are for: a real nginx, a real Caddy."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.caddy_site import CADDY, CaddySite, make_caddy_site
from tests.deploy.nginx_site import NGINX, NginxSite, make_nginx_site
from tests.deploy.reverse_proxy import DEPLOY, ReverseProxy
from tests.server_process import ServerProcess


@pytest.fixture
def deploy() -> Path:
    return DEPLOY


@pytest.fixture
def nginx_site(tmp_path: Path) -> Callable[..., NginxSite]:
    """Make a site whose upstreams are ports of loopback."""
    if NGINX is None:
        pytest.skip("nginx is NOT INSTALLED: its configuration goes untested (apt install nginx)")
    return lambda *upstream_ports: make_nginx_site(tmp_path, *upstream_ports)


@pytest.fixture
def caddy_site(tmp_path: Path) -> Callable[..., CaddySite]:
    """The same for Caddy."""
    if CADDY is None:
        pytest.skip("Caddy is NOT INSTALLED: its configuration goes untested (apt install caddy)")
    return lambda *upstream_ports: make_caddy_site(tmp_path, *upstream_ports)


@pytest.fixture
def run_reverse_proxy() -> Iterator[Callable[[ReverseProxy], None]]:
    """Start what a site is for, and return once it takes connections; all are stopped at the test's end."""
    running: list[subprocess.Popen[str]] = []

    def run(reverse_proxy: ReverseProxy) -> None:
        process = subprocess.Popen(reverse_proxy.command, stderr=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if reverse_proxy.ready_text in line:
                return
        pytest.fail(f"{reverse_proxy.command[0]} ended at its start: {''.join(lines)}")

    yield run
    for process in running:
        process.terminate()
        process.communicate(timeout=10)


@pytest.fixture(params=["nginx", "caddy"])
def reverse_proxy(
    server: ServerProcess, run_reverse_proxy: Callable[[ReverseProxy], None], request: pytest.FixtureRequest
) -> ReverseProxy:
    """One that runs, and whose upstream is a running service."""
    site: Callable[[int], ReverseProxy] = request.getfixturevalue(f"{request.param}_site")
    running = site(server.port)
    run_reverse_proxy(running)
    return running
