"""What is not installed is named with the command that installs it, and each such command names an extra that is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from app.models import convert
from app.parts import web_tokens_of
from app.settings import Settings, SettingsError
from app.speech import audio_of
from engine import errors
from engine.errors import ModelNotUsable, install_command
from engine.loading.preflight import check_options
from engine.machine import EngineOptions
from tests.deploy.wheels import GATEWAY, PROJECT, ROOT
from tests.engine.gguf_files import some_llama, write_gguf

EXTRAS = {
    project["project"]["name"]: set(project["project"]["optional-dependencies"])
    for project in (GATEWAY, PROJECT)
}


NAMED = sorted(
    {
        extra
        for layer in ("app", "connections", "engine", "sessions", "speech")
        for module in (ROOT / layer).rglob("*.py")
        for extra in re.findall(r"""install_command\(["'](\w+)["']\)""", module.read_text())
    }
)
"""The extras that the product asks an operator to install."""


@pytest.fixture
def gateway_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if `midstream-server` were not installed."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(errors, "version", missing)


def distribution_and_extra(command: str) -> tuple[str, str]:
    named = re.fullmatch(r'pip install "(.+)\[(.+)\]"', command)
    assert named is not None
    return named[1], named[2]


def test_refusals_name_every_extra_that_is_needed() -> None:
    """Without `cuda`, torch's own operations do the work of the kernels; without `fast`, Python's event loop does."""
    assert set(NAMED) == (EXTRAS["midstream-server"] | EXTRAS["midstream-gateway"]) - {"cuda", "fast"}


def test_the_whole_names_its_own_extras() -> None:
    for extra in NAMED:
        assert distribution_and_extra(install_command(extra)) == ("midstream-server", extra)
        assert extra in EXTRAS["midstream-server"]


@pytest.mark.usefixtures("gateway_alone")
def test_the_gateway_alone_names_extras_that_exist() -> None:
    """With torch installed by hand it may need those of the whole, too."""
    for extra in NAMED:
        distribution, named = distribution_and_extra(install_command(extra))
        assert named in EXTRAS[distribution]
        assert distribution == "midstream-gateway" or extra not in EXTRAS["midstream-gateway"]


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_a_model_without_an_engine_names_what_to_install(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    with pytest.raises(ModelNotUsable, match="pip install midstream-server, or name a server") as refused:
        check_options(EngineOptions(model="some/model"))
    assert "\n" not in str(refused.value)


def test_a_gguf_file_without_its_reader_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "it.gguf", some_llama())
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelNotUsable, match=r'pip install "midstream-server\[gguf\]"'):
        convert(Settings(model=str(file), data_dir=str(tmp_path)))
    assert not (tmp_path / "models").exists()


async def test_speech_without_its_libraries_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(
        SettingsError, match=r'soxr is not installed: pip install "midstream-server\[speech\]"'
    ):
        async with audio_of(Settings(speech="recognition")):
            pass


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (Settings(jwks_url="https://provider.example/keys", jwt_audience="chat"), "--jwks-url"),
        (Settings(jwt_issuer="https://provider.example", jwt_audience="chat"), "--jwt-issuer"),
    ],
)
def test_a_key_set_without_its_library_names_the_extra(
    settings: Settings, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(
        SettingsError,
        match=rf'{named}.*: cryptography is not installed: pip install "midstream-server\[crypto\]"',
    ):
        web_tokens_of(settings)
    assert web_tokens_of(Settings(jwt_secret="a secret of the operator's, long enough")) is not None


def test_a_model_that_needs_more_names_the_extra(tmp_path: Path) -> None:
    for name, content in {
        "config": {"model_type": "marian"},
        "preprocessor_config": {},
        "tokenizer_config": {"tokenizer_class": "MarianTokenizer"},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    program = """
import sys
sys.modules.update(PIL=None, sentencepiece=None)
from engine.errors import ModelNotUsable
from engine.loading.tokenizer import read_config, read_tokenizer
from engine.vision.processor import ImageProcessor
for call in (ImageProcessor.of, lambda folder: read_tokenizer(folder, read_config(folder))):
    try:
        call(sys.argv[1])
    except ModelNotUsable as error:
        print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    for extra in ("images", "translation"):
        assert f'pip install "midstream-server[{extra}]"' in ended.stdout, ended.stderr
