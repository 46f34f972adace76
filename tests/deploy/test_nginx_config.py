"""The shipped nginx site, as nginx itself reads it."""

from __future__ import annotations

import http.client
import re
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.deploy.front import Front
from tests.deploy.nginx_site import NginxSite
from tests.server_process import free_port


def seconds(value: str) -> int:
    return int(value[:-1]) * {"s": 1, "m": 60, "h": 3600}[value[-1]]


def test_nginx_accepts_the_site_without_a_warning(nginx_site: Callable[[int], NginxSite]) -> None:
    checked = subprocess.run(nginx_site(9).asked("-t"), capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr


def test_a_request_that_fails_leaves_no_ticket_in_any_log(
    nginx_site: Callable[[int], NginxSite], run_front: Callable[[Front], None]
) -> None:
    """The error log would quote it; the other one says that nobody answered, and where."""
    site = nginx_site(port := free_port())
    run_front(site)
    for line in (
        http.client.HTTPSConnection("localhost", site.https_port, context=site.tls),
        http.client.HTTPConnection("localhost", site.http_port),
    ):
        with closing(line):
            line.request("GET", "/v1/events?ticket=secret")
            assert line.getresponse().status in {308, 502}
    assert "secret" not in site.errors() + site.log.read_text()
    assert f" upstream 127.0.0.1:{port} 502 " in site.log.read_text().splitlines()[0]


def test_a_socket_may_be_quiet_for_an_hour_and_nothing_is_buffered(deploy: Path) -> None:
    snippet = (deploy / "nginx/midstream-proxy.conf").read_text()
    directives = dict(re.findall(r"^(\w+)\s+([^;#]+);", snippet, re.MULTILINE))
    assert seconds(directives["proxy_read_timeout"]) >= 3600
    assert directives["proxy_buffering"] == "off"
