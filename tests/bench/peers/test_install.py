"""Installation of peers: step by step, only once, and with a reason if it is not possible. No peer is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from tests.bench.peers.__main__ import chosen, torch_pin
from tests.bench.peers.install import NotInstallable, hindrance, install, quiet
from tests.bench.peers.registry import Peer, PeerName, Step, peers
from tests.bench.peers.report import LeftOut

FAILS = "import sys; print('no such wheel'); sys.exit(3)"


def python(title: str, code: str, limit_s: float = 60.0) -> Step:
    return Step(title=title, command=(sys.executable, "-c", code), limit_s=limit_s)


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    """A peer whose steps write a line each."""
    home = tmp_path / "peer"
    write = f"open({str(tmp_path / 'told')!r}, 'a').write('{{}}')"
    return Peer(
        who=PeerName.OPENVINO,
        version="1.0",
        home=str(home),
        program=str(home / "program"),
        stamp=str(home / ".installed"),
        steps=(
            python("one", write.format(1)),
            msgspec.structs.replace(python("two", write.format(2)), folder=str(home)),
            python("three", f"open({str(home / 'program')!r}, 'w')"),
        ),
    )


def test_all_steps_are_done_once_and_the_stamp_holds_the_version(peer: Peer, tmp_path: Path) -> None:
    lines: list[str] = []
    install(peer, lines.append)
    install(peer, lines.append)
    assert peer.installed
    assert (tmp_path / "told").read_text() == "12"
    assert lines[0] == "Installing OpenVINO GenAI 1.0, 1 of 3: one"
    assert len(lines) == 3


def test_an_installation_goes_on_where_the_last_one_failed(peer: Peer, tmp_path: Path) -> None:
    broken = msgspec.structs.replace(peer, steps=(*peer.steps[:2], python("three", FAILS)))
    with pytest.raises(NotInstallable, match="three: no such wheel"):
        install(broken, print)
    assert not peer.installed
    install(peer, print)
    assert (tmp_path / "told").read_text() == "12"


def test_another_version_is_installed_anew(peer: Peer, tmp_path: Path) -> None:
    install(peer, print)
    newer = msgspec.structs.replace(peer, version="2.0")
    assert not newer.installed
    install(newer, print)
    assert newer.installed
    assert (tmp_path / "told").read_text() == "1212"


def test_a_step_that_takes_too_long_is_ended_and_tells_on_its_way(peer: Peer) -> None:
    code = "import time; print('half', flush=True); time.sleep(60)"
    slow = msgspec.structs.replace(peer, steps=(python("slow", code, limit_s=1.0),))
    lines: list[str] = []
    with pytest.raises(NotInstallable, match="not done in 1 s"):
        install(slow, lines.append, progress_s=0.2)
    assert "  half" in lines


def test_a_program_that_is_not_there_and_one_that_was_not_made_are_told(peer: Peer) -> None:
    gone = msgspec.structs.replace(peer, steps=(Step(title="go", command=("/nowhere/at-all",)),))
    with pytest.raises(NotInstallable, match="No such file"):
        install(gone, print)
    with pytest.raises(NotInstallable, match="but there is no"):
        install(msgspec.structs.replace(peer, steps=()), print)


def test_who_is_left_out_is_told_with_a_reason(peer: Peer) -> None:
    def refuse(one: Peer, _progress: object) -> None:
        raise NotInstallable(f"no network for {one.who}")

    known = [peer, msgspec.structs.replace(peer, who=PeerName.VLLM)]
    here, left_out = chosen(known, [PeerName.OPENVINO], print, may_install=True, install=refuse)
    assert here == {}
    assert left_out == [
        LeftOut(PeerName.OPENVINO, "not installed: no network for openvino"),
        LeftOut(PeerName.VLLM, "not asked for"),
    ]
    _, (first, _) = chosen(known, [PeerName.OPENVINO], print, may_install=False)
    assert first.why.startswith("not installed")
    install(peer, print)
    assert list(chosen(known, [PeerName.OPENVINO], print, may_install=False)[0]) == [PeerName.OPENVINO]


def test_llama_server_needs_a_compiler() -> None:
    assert "C++ compiler" in (hindrance(PeerName.LLAMA, lambda _name: None) or "")
    assert hindrance(PeerName.LLAMA, lambda name: f"/bin/{name}") is None
    assert hindrance(PeerName.VLLM, lambda _name: None) is None


def test_each_peer_has_an_environment_of_its_own_and_torch_as_it_is_pinned(tmp_path: Path) -> None:
    found = peers(cache=tmp_path, torch=torch_pin("a==1\ntorch==2.13.0\n"), torch_index="https://wheels.test")
    assert len({peer.home for peer in found}) == len(found) == 3
    assert not any(peer.installed for peer in found)
    words = [" ".join(step.command) for step in found[2].steps]
    assert any("--index-url https://wheels.test torch==2.13.0" in line for line in words)
    assert torch_pin("") == "torch"


def test_other_pythons_find_nothing_of_ours() -> None:
    reported = quiet({"PYTHONPATH": "/here", "MIDSTREAM_API_KEYS": "secret", "HOME": "/home"})
    assert reported["HOME"] == "/home"
    assert not {"PYTHONPATH", "MIDSTREAM_API_KEYS"} & reported.keys()
