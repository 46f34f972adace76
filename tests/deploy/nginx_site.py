"""One nginx prefix: the files that operators copy, a certificate of its own, free ports on loopback."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.deploy.reverse_proxy import DEPLOY, ReverseProxy, certify
from tests.server_process import free_port

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

# What stands around a site file: the job of an operator's own nginx.conf.
MAIN_CONFIG = """\
{user}
daemon off;
pid nginx.pid;
error_log stderr notice;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    include conf.d/*.conf;
}}
"""


class NginxSite(ReverseProxy):
    """One nginx prefix with Midstream's site in it."""

    ready_text = "start worker process "

    @property
    def command(self) -> list[str]:
        """How it is started."""
        return self.command_with()

    def command_with(self, *options: str) -> list[str]:
        """The program with options of its own."""
        assert NGINX is not None
        return [NGINX, "-e", "stderr", "-p", str(self.prefix), "-c", "nginx.conf", *options]

    @property
    def failures(self) -> Path:
        """What the site says of requests that failed: the same log has that."""
        return self.log

    def logged(self) -> list[str]:
        """What its log says of each request."""
        return [line.split('"')[1] for line in self.log.read_text().splitlines()]


def make_nginx_site(prefix: Path, *upstream_ports: int) -> NginxSite:
    """Lay out a site in `prefix` whose upstreams are ports of loopback, with a copy of the shipped line each."""
    http_port, https_port = free_port(), free_port()
    lay_out(prefix, http_port, https_port)
    upstream = (DEPLOY / "nginx/midstream-upstream.conf").read_text()
    (shipped,) = (line for line in upstream.splitlines(keepends=True) if "server 127.0.0.1:8000" in line)
    servers = "".join(shipped.replace("8000", str(port)) for port in upstream_ports)
    (prefix / "snippets/midstream-upstream.conf").write_text(upstream.replace(shipped, servers))
    return NginxSite(prefix=prefix, http_port=http_port, https_port=https_port, tls=certify(prefix / "tls"))


def move_below(site: NginxSite, path: str, shipped: str) -> None:
    """Serve below a path what the site serves at its root, by the lines of deploy/README.md."""
    conf = site.prefix / "conf.d/midstream.conf"
    text = conf.read_text()
    begin, end = text.index("    location / {"), text.rindex("}")
    conf.write_text(text[:begin] + shipped.replace("/chat", path) + text[end:])


def lay_out(prefix: Path, http_port: int, https_port: int) -> None:
    """Copy the shipped files as deploy/README.md says; the ports are the one thing changed."""
    for folder in ("conf.d", "snippets", "tls"):
        (prefix / folder).mkdir()
    user = "user root;" if os.geteuid() == 0 else ""  # the prefix is readable by its owner alone
    (prefix / "nginx.conf").write_text(MAIN_CONFIG.format(user=user))
    for snippet in (DEPLOY / "nginx").iterdir():
        shutil.copy(snippet, prefix / "snippets")
    site = (DEPLOY / "nginx.conf").read_text()
    for line, replacement in {
        "    listen 80;\n": f"    listen 127.0.0.1:{http_port};\n",
        "    listen 443 ssl http2; #": f"    listen 127.0.0.1:{https_port} ssl http2; #",
        "    listen [::]:80;\n": "",
        "    listen [::]:443 ssl http2;\n": "",
    }.items():
        assert site.count(line) == 1
        site = site.replace(line, replacement)
    site = site.replace("/var/log/nginx/", "")
    (prefix / "conf.d/midstream.conf").write_text(site)
