"""`make` takes torch from where this machine needs it: indexes on loopback, each with a small package of that name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIN = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
NUMBER = PIN.removeprefix("torch==")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def index(folder: Path, build: str) -> Iterator[str]:
    """Serve a package index that has one build of torch; yields its URL."""
    wheel = folder / build / "torch" / f"torch-{NUMBER}+{build}-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    info = f"torch-{NUMBER}+{build}.dist-info"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {NUMBER}+{build}\n"
        )
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder / build))) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment, which takes seconds to make."""
    venv = tmp_path_factory.mktemp("made") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    return venv


@pytest.fixture
def venv(shared: Path) -> Iterator[Path]:
    yield shared
    (shared / ".installed-torch").unlink(missing_ok=True)
    for installed in shared.glob("lib/*/site-packages/torch-*"):
        shutil.rmtree(installed)


def make(venv: Path, *words: str, **environ: str) -> tuple[str, str]:
    """Install torch; return its version and what `make` printed."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    done = subprocess.run(
        ["make", f"VENV={venv}", "HAS_GPU=false", *words, str(venv / ".installed-torch")],
        cwd=ROOT,
        env=given | {"PIP_CONFIG_FILE": os.devnull} | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    (installed,) = venv.glob("lib/*/site-packages/torch-*.dist-info")
    return installed.name.removeprefix("torch-").removesuffix(".dist-info"), done.stdout + done.stderr


linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere pip's own index has the build for CPUs")


@linux
def test_without_a_gpu_torch_is_the_build_for_cpus(venv: Path, tmp_path: Path) -> None:
    with index(tmp_path, "cpu") as cpu:
        version, printed = make(venv, f"CPU_INDEX={cpu}")
    assert version == f"{NUMBER}+cpu"
    assert f"from {cpu}" in printed


@linux
def test_a_source_that_pip_is_configured_for_is_respected(venv: Path, tmp_path: Path) -> None:
    with index(tmp_path, "cpu") as cpu, index(tmp_path, "own") as own:
        version, _ = make(venv, f"CPU_INDEX={cpu}", PIP_INDEX_URL=own)
    assert version == f"{NUMBER}+own"


@linux
def test_an_index_that_can_not_be_reached_falls_back_to_pips_own(venv: Path, tmp_path: Path) -> None:
    with index(tmp_path, "gone") as gone:
        pass
    with index(tmp_path, "own") as own:
        version, printed = make(venv, f"CPU_INDEX={gone}", "HAS_SOURCE=false", PIP_INDEX_URL=own)
    assert version == f"{NUMBER}+own"
    assert "can't be used" in printed


def test_an_index_that_is_named_is_taken(venv: Path, tmp_path: Path) -> None:
    with index(tmp_path, "cpu") as cpu, index(tmp_path, "named") as named:
        version, _ = make(venv, f"CPU_INDEX={cpu}", f"TORCH_INDEX={named}")
    assert version == f"{NUMBER}+named"
