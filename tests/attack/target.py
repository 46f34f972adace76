"""The attacked servers, one at a time, and their memory."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha256
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from subprocess import TimeoutExpired

from tests import serve_with
from tests.attack.attack import MB, Attack, TargetKind
from tests.attack.client import Attacker, Job, Outcome
from tests.attack.embedding_server import vectors
from tests.attack.families.credentials import KEY_ID
from tests.chaos import gateway
from tests.chaos.memory import forget_peak, peak_bytes, resident_bytes
from tests.jwt_signing import jwk, provider, rsa_key
from tests.server_process import ServerProcess, serving

SCRIPT = gateway.Script(words=1_000, pace_s=0.02, max_batch=32, images=True)
ATTACKERS = 20
"""Most attackers at once; each has a key."""
PEOPLE = 9
"""People beside the attackers; each has a key."""
GROWN_BYTES = 16 * MB
END_S = 10.0
"""Seconds that a server has to end by itself."""
QUIET = {"MIDSTREAM_LOG_LEVEL": "warning"}
AS_DEPLOYED = {"PYTHONMALLOC": "malloc"}
"""As in `deploy/`: memory of a burst goes back to the system."""
LISTENING = {
    "MIDSTREAM_SPEECH": "recognition",
    "MIDSTREAM_SPEECH_RECOGNIZER": str(Path(__file__).parent.parent / "e2e" / "demo.jsgf"),
}
TOOL = {"MIDSTREAM_TOOLS": "tests.chaos.scripted_tools:note"}
KV_BYTES = 32 * MB
"""The engine's memory for keys and values. It is kept once used, so all of it is used before the first attack."""
LONG_PROMPTS = 16
PROMPT_WORDS = 1_900


class Target:
    """A running server. `keys` are the attackers', `own_keys` the neighbours'; empty without authentication."""

    def __init__(
        self, ground: TargetKind, server: ServerProcess, keys: tuple[str, ...], own_keys: tuple[str, ...]
    ) -> None:
        self.ground = ground
        self.server = server
        self.keys = keys
        self.own_keys = own_keys
        self._notes: dict[str, str] = {}
        self._at_first = self.resident_bytes()

    @property
    def port(self) -> int:
        """Its port, on loopback."""
        return self.server.port

    def gateway_peak(self, *, anew: bool = False) -> int:
        """Return the gateway's peak memory; `anew` resets the peak. Raises OSError if it has ended."""
        assert self.server.process is not None
        if anew:
            forget_peak(self.server.process.pid)
        return peak_bytes(self.server.process.pid)

    def resident_bytes(self) -> int:
        """Return the memory of the gateway and of the engine's process, if any. Raises OSError if one has ended."""
        assert self.server.process is not None
        pids = [self.server.process.pid]
        if self.ground is TargetKind.MODEL:
            pids.append(self.server.engine_pid())
        return sum(resident_bytes(pid) for pid in pids)

    @property
    def has_grown(self) -> bool:
        """True if an attack left much behind."""
        return self.resident_bytes() > self._at_first + GROWN_BYTES

    async def prepared(self, attack: Attack) -> str:
        """Run an attack's preparation, once; return its result."""
        if attack.prepare is None:
            return ""
        name = attack.prepare.__name__
        if name not in self._notes:
            job = Job(attack=attack.name, port=self.port, attackers=1, seconds=0)
            with closing(Attacker(job, Outcome(), number=0, place=0, life=0)) as first:
                self._notes[name] = await attack.prepare(first)
        return self._notes[name]


class Targets:
    """At most one server, started when it is asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._place: Target | None = None

    def on(self, ground: TargetKind) -> Target:
        """Return the server of a kind, as the last attack left it, or a new one."""
        if self._place is None or self._place.ground is not ground:
            self.close()
            self._place = self._stack.enter_context(_opened(ground))
        return self._place

    def close(self) -> None:
        """End the server; the next one is new."""
        if self._place is not None:
            _end(self._place.server)
        self._place = None
        self._stack.close()


def _end(server: ServerProcess) -> None:
    """End a server that may still be busy."""
    assert server.process is not None
    server.process.terminate()
    try:
        server.process.wait(END_S)
    except TimeoutExpired:
        server.kill()


@contextmanager
def _opened(ground: TargetKind) -> Iterator[Target]:
    # The store of a server that had to be killed may still write.
    folders = tempfile.TemporaryDirectory(prefix="midstream-attack-", ignore_cleanup_errors=True)
    with folders as folder, ExitStack() as stack:
        kept = serve_with.command(kv_idle_s=86_400.0)  # no page is given up before it is attacked
        command = kept if ground is TargetKind.MODEL else gateway.command(SCRIPT)
        environ = QUIET | AS_DEPLOYED
        keys, own_keys = (_keys(ATTACKERS), _keys(PEOPLE)) if ground is TargetKind.KEYS else ((), ())
        if keys:
            issuer = stack.enter_context(provider(jwk(rsa_key(), kid=KEY_ID)))
            named = (
                f"{secrets.token_hex(4)}:{sha256(key.encode()).hexdigest()}" for key in (*keys, *own_keys)
            )
            environ |= {"MIDSTREAM_API_KEYS": ",".join(named)}
            environ |= {"MIDSTREAM_JWKS_URL": issuer.url, "MIDSTREAM_JWT_AUDIENCE": "*"}
        if ground is TargetKind.SPEECH:
            environ |= LISTENING
        if ground is TargetKind.OPEN:
            upstreams = Path(folder) / "upstreams.toml"
            upstreams.write_text(stack.enter_context(vectors()))
            speech = {"MIDSTREAM_SPEECH": "both" if shutil.which("espeak-ng") else "recognition"}
            environ |= LISTENING | speech | TOOL | {"MIDSTREAM_CONFIG": str(upstreams)}
        if ground is TargetKind.MODEL:
            environ |= {"MIDSTREAM_KV_MEMORY": str(KV_BYTES)}
        server = stack.enter_context(serving(Path(folder), environ, command=command))
        if ground is TargetKind.MODEL:
            _use_all_pages(server.port)
        yield Target(ground, server, keys, own_keys)


def _use_all_pages(port: int) -> None:
    """Have the engine read distinct prompts until every page of its memory for them has been written."""
    with closing(HTTPConnection("127.0.0.1", port)) as line:
        for number in range(LONG_PROMPTS):
            content = f"{number} " + "once upon " * (PROMPT_WORDS // 2)
            ask = {
                "model": "midstream-demo",
                "messages": [{"role": "user", "content": content}],
                "max_tokens": 1,
            }
            line.request("POST", "/v1/chat/completions", json.dumps(ask))
            answer = line.getresponse()
            reported = answer.read()
            assert answer.status == HTTPStatus.OK, reported


def _keys(count: int) -> tuple[str, ...]:
    return tuple(f"msk_{secrets.token_urlsafe(32)}" for _ in range(count))
