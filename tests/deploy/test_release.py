"""A release, up to what would be published: built of what git knows, and looked at."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.deploy.wheels import PROJECT, ROOT, names_in

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="a release is made of what git knows"
)
VERSION = PROJECT["project"]["version"]


def test_a_dry_run_builds_and_checks_all_and_publishes_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "distributions/release.py", "--dry-run", "--into", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"CC": "false"},  # the kernels in C are compiled for tests/deploy/test_wheel.py
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    made = {file.name for file in tmp_path.iterdir()}
    projects = ("midstream", "midstream_gateway", "midstream_server")
    assert {f"{name}-{VERSION}.tar.gz" for name in projects} < made
    assert {f"{name}-{VERSION}-py3-none-any.whl" for name in projects[:2]} < made
    (upload,) = (line for line in ended.stdout.splitlines() if "twine upload" in line)
    assert "linux_x86_64" not in upload
    assert "would run: npm publish" in ended.stdout
    assert ended.stdout.count(": the metadata can be read") == 6
    with tarfile.open(tmp_path / f"midstream_server-{VERSION}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    (wheel,) = tmp_path.glob("midstream_gateway-*.whl")
    assert {"midstream_server/app/docs/index.html", "midstream_server/app/docs/tools/index.html"} <= names_in(
        wheel
    )
    (kernels,) = PROJECT["tool"]["setuptools"]["ext-modules"]
    assert {"LICENSE", *kernels["sources"], *kernels["depends"]} <= names


def test_packages_of_different_versions_are_not_released(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in (
        "pyproject.toml",
        "midstream/pyproject.toml",
        "distributions/gateway/pyproject.toml",
        "app/page/client/package.json",
        "distributions/release.py",
    ):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    client = copy / "midstream" / "pyproject.toml"
    client.write_text(client.read_text().replace(f'version = "{VERSION}"', 'version = "9.9.9"'))
    ended = subprocess.run(
        [sys.executable, str(copy / "distributions" / "release.py"), "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "different versions: 0.1.0, 9.9.9" in ended.stderr
