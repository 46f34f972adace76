"""One Caddy: the file that operators copy, a certificate of its own, free ports on loopback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.deploy.reverse_proxy import DEPLOY, ReverseProxy, certify
from tests.server_process import free_port

CADDY = shutil.which("caddy")
ASIDE = """\
{{
	admin off
	skip_install_trust
	auto_https disable_certs
	http_port {http}
	https_port {https}
	default_bind 127.0.0.1
	storage file_system {prefix}/storage
"""
"""What is added to the options: it takes no port of the machine's, and asks nobody for a certificate."""


class CaddySite(ReverseProxy):
    """One Caddy with Midstream's site in it."""

    ready_text = "serving initial configuration"

    @property
    def failures(self) -> Path:
        """What the site says of requests that failed."""
        return self.prefix / "failures.log"

    @property
    def command(self) -> list[str]:
        """How it is started."""
        assert CADDY is not None
        return [CADDY, "run", "--adapter", "caddyfile", "--config", str(self.prefix / "Caddyfile")]

    def logged(self) -> list[str]:
        """What its log says of each request."""
        requests = [json.loads(line)["request"] for line in self.log.read_text().splitlines()]
        return [f"{one['method']} {one['uri']} {one['proto']}" for one in requests]


def move_below(site: CaddySite, path: str, shipped: str) -> None:
    """Serve below a path what the site serves at its root, by the lines of deploy/README.md."""
    conf = site.prefix / "Caddyfile"
    text = conf.read_text()
    begin, end = text.index("\t# For monitoring"), text.index("\t# What is logged of a request")
    head, tail = shipped.replace("/chat", path).split("\t# …\n")
    conf.write_text(text[:begin] + head + text[begin:end] + tail + text[end:])


def make_caddy_site(prefix: Path, *upstream_ports: int) -> CaddySite:
    """Lay out a site in `prefix` whose upstreams are ports of loopback."""
    (prefix / "tls").mkdir()
    made = CaddySite(
        prefix=prefix, http_port=free_port(), https_port=free_port(), tls=certify(prefix / "tls")
    )
    site = (DEPLOY / "Caddyfile").read_text()
    aside = ASIDE.format(http=made.http_port, https=made.https_port, prefix=prefix)
    upstreams = " ".join(f"127.0.0.1:{port}" for port in upstream_ports)
    for line, replacement in {
        "\n{\n": f"\n{aside}",
        "chat.example.org {": f"localhost {{\n\ttls {prefix}/tls/fullchain.pem {prefix}/tls/privkey.pem",
        "reverse_proxy 127.0.0.1:8000": f"reverse_proxy {upstreams}",
        "/var/log/caddy/midstream.log": str(made.log),
        "/var/log/caddy/midstream-failures.log": str(made.failures),
    }.items():
        assert site.count(line) == 1
        site = site.replace(line, replacement)
    if len(upstream_ports) > 1:
        assert site.count("# health_") == 2
        site = site.replace("# health_", "health_")
    (prefix / "Caddyfile").write_text(site)
    return made
