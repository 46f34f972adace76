"""What `midstream doctor` finds, with real stores, certificates, files and servers; and how it is told."""

from __future__ import annotations

import json
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import trustme
from click.testing import CliRunner
from transformers import FalconConfig

from app import doctor
from app.cli import main
from app.doctor import Finding, Verdict, machine, network
from app.keys import add_key
from app.settings import Settings
from sessions.store.client import connect
from sessions.store.embedded import embedded_store
from tests.app.in_process_service import settings_with
from tests.app.test_cli import midstream
from tests.engine.conftest import small_tokenizer
from tests.engine.gguf_files import some_llama, write_gguf
from tests.engine.upstream_server import upstream_server

UPSTREAM = '[[upstream]]\nname = "one"\nurl = "{url}"\nmodel = "{model}"\ncontext_tokens = 4096\n'
GOOD, POOR, BAD = Verdict.GOOD, Verdict.POOR, Verdict.BAD


def local_findings(tmp_path: Path, **options: Any) -> dict[str, Finding]:
    """What is found of the machine, without torch: the replies are another server's."""
    (tmp_path / "upstreams.toml").write_text(UPSTREAM.format(url="http://h/v1", model="m"))
    settings = settings_with(**{"config": str(tmp_path / "upstreams.toml"), "port": 0} | options)
    return {finding.subject: finding for finding in machine(settings)}


async def reached(**options: Any) -> list[Finding]:
    """What is found of what has to be reached."""
    return [finding async for finding in network(settings_with(**options))]


def test_the_command_finds_all_well_where_the_bundled_model_can_serve(tmp_path: Path) -> None:
    environ = {"MIDSTREAM_PORT": "0", "MIDSTREAM_DATA_DIR": str(tmp_path)}
    ended = CliRunner().invoke(main, ["doctor", "--json"], env=environ)
    found = {one["subject"]: one["verdict"] for one in json.loads(ended.stdout)}
    assert ended.exit_code == 0
    assert {"Python", "torch", "model", "kernels", "memory", "port", "store"} <= set(found)
    assert found["torch"] == found["model"] == found["store"] == "ok"


def test_the_command_says_what_to_mend_and_ends_with_1(tmp_path: Path) -> None:
    ended = midstream(
        tmp_path, "doctor", "--model", str(tmp_path), MIDSTREAM_REDIS_URL="redis://127.0.0.1:1/0"
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    reported = [line for line in ended.stdout.splitlines() if line.startswith("error")]
    assert [line.split()[1] for line in reported] == ["model:", "store:"]
    assert "no config.json" in reported[0]
    assert "127.0.0.1:1" in reported[1]
    assert ended.stdout.splitlines()[-1].startswith("2 errors, ")


def model_found(tmp_path: Path, model: str | Path | None, **more: Any) -> Finding:
    named = None if model is None else str(model)
    settings = Settings(model=named, port=0, device="cpu", data_dir=str(tmp_path / "data"), **more)
    return next(finding for finding in machine(settings) if finding.subject == "model")


def folder_with(tmp_path: Path) -> Path:
    """Return a folder with a model of random weights."""
    some_llama().save_pretrained(tmp_path / "model")
    small_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.long
def test_whether_a_model_runs_here_is_answered_with_what_it_gets(tmp_path: Path) -> None:
    found = model_found(tmp_path, folder_with(tmp_path))
    assert found.verdict is GOOD
    assert "LlamaForCausalLM runs in this engine" in found.words
    assert "context of about 512 tokens" in found.words


@pytest.mark.long
def test_a_model_that_does_not_run_here_is_told_why_and_what_else_does(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    FalconConfig(num_hidden_layers=1).save_pretrained(folder)
    found = model_found(tmp_path, folder)
    assert found.verdict is BAD
    assert "attention that can't be replaced" in found.words
    assert "--engine vllm" in found.fix
    assert "--upstream" in found.fix


@pytest.mark.long
def test_what_a_start_would_fetch_or_convert_is_told(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", some_llama())
    fetched, converted = model_found(tmp_path, "smollm2"), model_found(tmp_path, file)
    assert (fetched.verdict, "93 MB" in fetched.words) == (POOR, True)
    assert (converted.verdict, "converted at the start" in converted.words) == (GOOD, True)
    refused = model_found(tmp_path, write_gguf(tmp_path / "no.gguf", some_llama(), architecture="hovercraft"))
    assert (refused.verdict, "hovercraft" in refused.words) == (BAD, True)
    others = model_found(tmp_path, "nobody/has-this", engine="vllm")
    assert (others.verdict, "fetched at the start" in others.words) == (POOR, True)
    (tables := tmp_path / "upstreams.toml").write_text('[[engine]]\nmodel = "smollm2"\n')
    assert model_found(tmp_path, None, config=str(tables)).verdict is GOOD
    assert not (tmp_path / "data").exists()


def test_an_unknown_setting_is_told_as_serve_tells_it() -> None:
    ended = CliRunner().invoke(main, ["doctor"], env={"MIDSTREAM_MAX_BACH": "4"})
    assert (ended.exit_code, ended.stderr[:46]) == (1, "midstream: Unknown setting MIDSTREAM_MAX_BACH.")


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = local_findings(tmp_path, port=taken.getsockname()[1])
    assert (found["port"].verdict, local_findings(tmp_path)["port"].verdict) == (POOR, GOOD)


def test_a_certificate_that_can_not_be_used_is_told(tmp_path: Path) -> None:
    made = trustme.CA().issue_cert("localhost")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    assert local_findings(tmp_path, tls_cert=str(tmp_path / "both.pem"))["TLS"].verdict is GOOD
    assert local_findings(tmp_path, tls_cert=__file__)["TLS"].verdict is BAD


def test_key_sets_without_their_library_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    keys = {"jwks_url": "https://provider.example/keys", "jwt_audience": "chat"}
    found = local_findings(tmp_path, **keys)["authentication"]
    assert (found.verdict, "[crypto]" in found.words) == (BAD, True)


def test_the_file_of_keys_is_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert local_findings(tmp_path, api_keys=str(keys))["keys"].verdict is BAD
    keys.write_text("")
    assert local_findings(tmp_path, api_keys=str(keys))["keys"].verdict is POOR
    add_key(keys, "ann")
    assert local_findings(tmp_path, api_keys=str(keys))["keys"].verdict is GOOD
    keys.chmod(0o666)
    assert "Others may write" in local_findings(tmp_path, api_keys=str(keys))["keys"].words


def test_whoever_lets_everybody_in_is_told(tmp_path: Path) -> None:
    assert local_findings(tmp_path)["authentication"].verdict is GOOD
    assert local_findings(tmp_path, host="0.0.0.0", insecure=True)["authentication"].verdict is POOR


def test_filters_and_tools_of_the_operators_own_are_loaded(tmp_path: Path) -> None:
    file = tmp_path / "filters.toml"
    for tool, word, verdict in (("noon", "bad", GOOD), ("gone", "bad", BAD), ("noon", "", BAD)):
        upstream = UPSTREAM.format(url="http://h/v1", model="m")
        file.write_text(f'{upstream}[filters.input]\nwords = ["{word}"]\n')
        found = local_findings(tmp_path, config=str(file), tools=(f"tests.app.server_tools:{tool}",))
        assert found["filters and tools"].verdict is verdict


@pytest.mark.parametrize(("free", "verdict"), [(100, POOR), (8_000_000, POOR), (10**10, GOOD)])
def test_a_model_that_does_not_fit_the_memory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: Verdict
) -> None:
    monkeypatch.setattr(doctor, "free_memory", lambda: free)
    assert doctor._memory(Settings(data_dir=str(tmp_path)), None, {"cpu"}).verdict is verdict


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(which("gcc") is None, reason="needs gcc")
def test_a_cuda_device_without_a_c_compiler_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    assert doctor._kernels({"cuda"}).verdict is GOOD
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor._kernels({"cuda"})
    assert (found.verdict, found.fix) == (BAD, "Install gcc and libc6-dev.")
    assert doctor._kernels({"cpu"}).verdict is GOOD


async def test_a_store_is_asked_what_it_would_lose(tmp_path: Path) -> None:
    async with embedded_store(tmp_path) as url, connect(url) as store:
        found = {one.subject: one for one in await reached(redis_url=url)}
        assert {name: one.verdict for name, one in found.items()} == {
            "store": GOOD,
            "durability": GOOD,
        }
        await store.config_set("maxmemory-policy", "allkeys-lru")
        reported = (await reached(redis_url=url))[-1]
        assert reported.verdict is POOR
        assert "noeviction" in reported.words
        (*_, refused) = await reached(redis_url=url, store_durability="replicated")
        assert refused.verdict in (POOR, BAD)
        await store.config_set("appendfsync", "everysec")
        (*_, refused) = await reached(redis_url=url, store_durability="disk")
        assert (refused.verdict, "appendfsync always" in refused.words) == (BAD, True)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "nonsense://"])
async def test_a_store_that_is_not_there_is_told(url: str) -> None:
    (found,) = await reached(redis_url=url)
    assert (found.subject, found.verdict) == ("store", BAD)


async def test_the_embedded_store_says_where_it_will_be_and_what_it_can_lose(tmp_path: Path) -> None:
    (found,) = await reached(data_dir=str(tmp_path / "not" / "there"))
    assert (found.verdict, str(tmp_path / "not" / "there") in found.words) == (GOOD, True)
    (found,) = await reached(data_dir=str(tmp_path), store_durability="memory")
    assert (found.verdict, "last two seconds" in found.words) == (POOR, True)
    for refused in (
        {"data_dir": str(tmp_path), "store_durability": "replicated"},
        {"data_dir": "/proc/nowhere"},
    ):
        (found,) = await reached(**refused)
        assert found.verdict is BAD


async def test_each_upstream_is_asked_for_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "upstreams.toml"
    async with upstream_server() as server:
        file.write_text(UPSTREAM.format(url=server.url, model="model"))
        assert (await reached(config=str(file)))[-1].verdict is GOOD
        file.write_text(UPSTREAM.format(url=server.url, model="another"))
        assert "does not serve 'another'" in (await reached(config=str(file)))[-1].words
        file.write_text(UPSTREAM.format(url=server.url, model="model") + 'key_variable = "NO_SUCH_KEY"\n')
        assert "NO_SUCH_KEY is not set" in (await reached(config=str(file)))[-1].words
        monkeypatch.setenv("NO_SUCH_KEY", "there")
        assert (await reached(config=str(file)))[-1].verdict is GOOD
        file.write_text(UPSTREAM.format(url=server.url + "/nowhere", model="model"))
        assert "answers 404" in (await reached(config=str(file)))[-1].words
    assert "can't be reached" in (await reached(config=str(file)))[-1].words
