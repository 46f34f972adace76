"""The shipped nginx site, as nginx itself reads it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.deploy.nginx_site import NginxSite


def seconds(value: str) -> int:
    return int(value[:-1]) * {"s": 1, "m": 60, "h": 3600}[value[-1]]


def test_nginx_accepts_the_site_without_a_warning(nginx_site: Callable[[int], NginxSite]) -> None:
    checked = subprocess.run(nginx_site(9).command_with("-t"), capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr


def test_a_socket_may_be_quiet_for_an_hour_and_nothing_is_buffered(deploy: Path) -> None:
    snippet = (deploy / "nginx/midstream-proxy.conf").read_text()
    directives = dict(re.findall(r"^(\w+)\s+([^;#]+);", snippet, re.MULTILINE))
    assert seconds(directives["proxy_read_timeout"]) >= 3600
    assert directives["proxy_buffering"] == "off"
