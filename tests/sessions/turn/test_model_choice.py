"""Which model is asked for a translation where none is named, and how languages are named."""

from __future__ import annotations

import msgspec
import pytest

from engine.messages import Languages, Translation
from engine.scripted import FEATURES, ScriptedEngine
from engine.served_models import ServedModel, ServedModels
from sessions.errors import Forbidden
from sessions.languages import language_code, language_name
from sessions.records import SourceState
from sessions.turn.prompt import ModelChoice, TranslationTask

NLLB = ("eng_Latn", "zho_Hans")
INTERPRETING = SourceState("en", "zh", "agreement")


def translating(name: str, *codes: str) -> ServedModel:
    engine = ScriptedEngine(features=("translate",))
    engine._facts = msgspec.structs.replace(engine._facts, languages=Languages(codes, codes, 100))
    return ServedModel(name=name, engine=engine)


@pytest.fixture
async def choice() -> ModelChoice:
    """A chat model, the default, one that can't go on with a reply, and two that translate."""
    chat = ServedModel(name="chat", engine=ScriptedEngine(features=FEATURES))
    plain = ServedModel(name="plain", engine=ScriptedEngine(features=()))
    models = [chat, plain, translating("romance", "fra", "spa"), translating("nllb", *NLLB)]
    return ModelChoice(ServedModels(models))


@pytest.mark.parametrize(
    ("task", "kept", "found"),
    [
        (Translation("zho_Hans", "eng_Latn"), "", "nllb"),
        (Translation("spa"), "chat", "romance"),
        (Translation("spa"), "romance", "romance"),
        (Translation("fin"), "", "romance"),  # whose refusal names its languages
        (INTERPRETING, "", "nllb"),
        (INTERPRETING, "chat", "chat"),  # what the conversation has, if it can
        (INTERPRETING, "plain", "nllb"),
        (INTERPRETING, "romance", "nllb"),
        (msgspec.structs.replace(INTERPRETING, source="auto"), "", "nllb"),
        (msgspec.structs.replace(INTERPRETING, target="fi"), "", "chat"),  # by a prompt
        (None, "", "chat"),
    ],
)
async def test_a_model_that_has_the_languages_goes_before_the_default(
    choice: ModelChoice, task: TranslationTask | None, kept: str, found: str
) -> None:
    assert choice.requested(None, kept, translates=task) == found


async def test_who_is_named_is_asked_and_nobody_who_may_not_be(choice: ModelChoice) -> None:
    assert choice.requested("plain", translates=INTERPRETING) == "plain"
    assert choice.requested(None, only=["chat", "plain"], translates=INTERPRETING) == "chat"
    with pytest.raises(Forbidden):
        choice.requested("nllb", only=["chat"], translates=INTERPRETING)


CODES = ("eng_Latn", "zho_Hans", "zho_Hant", "por_Latn")
M2M100 = ("en", "zh", "pt", "ast")


@pytest.mark.parametrize(
    ("tag", "codes", "found"),
    [
        ("zh", CODES, "zho_Hans"),
        ("zh-Hant", CODES, "zho_Hant"),
        ("zho_Hant", CODES, "zho_Hant"),
        ("en-GB", CODES, "eng_Latn"),
        ("EN", M2M100, "en"),
        ("eng_Latn", M2M100, "en"),
        ("ast", M2M100, "ast"),
        ("de", CODES, None),
        ("xx", M2M100, None),
    ],
)
def test_a_language_is_found_by_its_tag(tag: str, codes: tuple[str, ...], found: str | None) -> None:
    assert language_code(tag, codes) == found


def test_a_language_has_a_name_in_prompts() -> None:
    assert [language_name(tag) for tag in ("zh", "pt-BR", "tlh")] == ["Chinese", "Portuguese (BR)", "tlh"]
