"""The attacked servers, one at a time, and their memory."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha256
from pathlib import Path
from subprocess import TimeoutExpired

import httpx
import msgspec

from tests.attack.attack import Attack, TargetKind
from tests.attack.client import MB, Attacker, Job, Outcome
from tests.attack.embedding_server import vectors
from tests.attack.families.credentials import KEY_ID
from tests.attack.requests import COMPLETIONS, completion
from tests.chaos import gateway
from tests.chaos.memory import resident_bytes
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
AS_DEPLOYED = {"MIDSTREAM_LOG_LEVEL": "warning", "PYTHONMALLOC": "malloc"}
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
        self.own_keys = own_keys
        self._keys = keys
        self._notes: dict[str, str] = {}
        self._at_first = self.resident_bytes()

    @property
    def port(self) -> int:
        """Its port, on loopback."""
        return self.server.port

    @property
    def pid(self) -> int:
        """The gateway's process id."""
        assert self.server.process is not None
        return self.server.process.pid

    def resident_bytes(self) -> int:
        """Return the memory of the gateway and of the engine's process, if any. Raises OSError if one has ended."""
        engines = [self.server.engine_pid()] if self.ground is TargetKind.MODEL else []
        return sum(resident_bytes(pid) for pid in (self.pid, *engines))

    @property
    def has_grown(self) -> bool:
        """True if an attack left much behind."""
        return self.resident_bytes() > self._at_first + GROWN_BYTES

    async def job(self, attack: Attack, attackers: int, seconds: float) -> Job:
        """Run an attack's preparation, once, and return the job of so many attackers."""
        keys = self._keys[:attackers]
        job = Job(attack=attack.name, port=self.port, attackers=attackers, seconds=seconds, keys=keys)
        if attack.prepare is None:
            return job
        name = attack.prepare.__name__
        if name not in self._notes:
            with closing(Attacker(job, Outcome())) as first:
                self._notes[name] = await attack.prepare(first)
        return msgspec.structs.replace(job, note=self._notes[name])


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
        """End the server, which may still be busy; the next one is new."""
        if self._place is not None and (process := self._place.server.process) is not None:
            process.terminate()
            try:
                process.wait(END_S)
            except TimeoutExpired:
                self._place.server.kill()
        self._place = None
        self._stack.close()


@contextmanager
def _opened(ground: TargetKind) -> Iterator[Target]:
    # The store of a server that had to be killed may still write.
    folders = tempfile.TemporaryDirectory(prefix="midstream-attack-", ignore_cleanup_errors=True)
    with folders as name, ExitStack() as stack:
        folder, environ, command = Path(name), dict(AS_DEPLOYED), gateway.command(SCRIPT)
        keys: tuple[str, ...] = ()
        match ground:
            case TargetKind.KEYS:
                keys = tuple(f"msk_{secrets.token_urlsafe(32)}" for _ in range(ATTACKERS + PEOPLE))
                issuer = stack.enter_context(provider(jwk(rsa_key(), kid=KEY_ID)))
                hashed = (f"{secrets.token_hex(4)}:{sha256(key.encode()).hexdigest()}" for key in keys)
                environ |= {"MIDSTREAM_API_KEYS": ",".join(hashed)}
                environ |= {"MIDSTREAM_JWKS_URL": issuer.url, "MIDSTREAM_JWT_AUDIENCE": "*"}
            case TargetKind.OPEN:
                upstreams = folder / "upstreams.toml"
                upstreams.write_text(stack.enter_context(vectors()))
                environ |= LISTENING | TOOL | {"MIDSTREAM_CONFIG": str(upstreams)}
                if shutil.which("espeak-ng"):
                    environ["MIDSTREAM_SPEECH"] = "both"
            case TargetKind.MODEL:
                command = ("app", "serve")
                environ |= {"MIDSTREAM_KV_MEMORY": str(KV_BYTES)}
        server = stack.enter_context(serving(folder, environ, command=command))
        if ground is TargetKind.MODEL:
            _use_all_pages(server)
        yield Target(ground, server, keys[:ATTACKERS], keys[ATTACKERS:])


def _use_all_pages(server: ServerProcess) -> None:
    """Have the engine read distinct prompts until every page of its memory for them has been written."""
    for number in range(LONG_PROMPTS):
        content = f"{number} " + "once upon " * (PROMPT_WORDS // 2)
        asked = completion(messages=[{"role": "user", "content": content}])
        httpx.post(f"{server.url}{COMPLETIONS}", content=asked, timeout=60.0).raise_for_status()
