"""The bundled translator beside the bundled model. Its process starts with the first translation."""

from __future__ import annotations

from pathlib import Path

from app.settings import Settings
from engine.messages import Languages, ModelFacts, Params
from engine.options import EngineOptions
from engine.process.client import EngineClient, EngineOnDemand
from engine.process.supervision import HeartbeatOptions

TRANSLATOR = Path(__file__).parents[2] / "demo_translator" / "checkpoint"
NAME = "midstream-translator"
KV_BYTES = 64 << 20
"""For some thirty sentences at once. The default, a quarter of the free memory, would be taken from the other model."""
_LANGUAGES = ("eng_Latn", "zho_Hans")
FACTS = ModelFacts(
    model=str(TRANSLATOR),
    context_tokens=512,
    defaults=Params(
        max_new_tokens=254, do_sample=False, temperature=1.0, top_p=1.0, top_k=50, repetition_penalty=1.0
    ),
    device="cpu",
    dtype="bfloat16",
    max_batch=32,
    parameters=2_793_792,
    features=("translate",),
    languages=Languages(_LANGUAGES, _LANGUAGES, 256),
)
"""The facts that its process will report, except for the type of the weights, which depends on the processor."""


def serves_translator(settings: Settings) -> bool:
    """Return whether it is served: with the bundled model, unless the operator disables it."""
    return settings.translator and settings.is_bundled and settings.engine == "midstream"


def translator(settings: Settings) -> EngineOnDemand:
    """Return its engine. One thread is enough for weights of this size, so the other model keeps its own."""
    options = EngineOptions(
        model=str(TRANSLATOR),
        device="cpu",
        dtype=settings.dtype if settings.dtype != "float16" else "auto",
        max_batch=settings.max_batch,
        kv_bytes=KV_BYTES,
        threads=1,
    )
    heartbeat = HeartbeatOptions(step_timeout_s=settings.step_timeout_s)
    return EngineOnDemand(lambda: EngineClient(options, heartbeat=heartbeat), FACTS)
