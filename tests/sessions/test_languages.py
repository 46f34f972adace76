"""Languages as people tag them, as prompts name them and as models that translate do."""

from __future__ import annotations

import pytest

from sessions.languages import language_code, language_name

NLLB = ("eng_Latn", "zho_Hans", "zho_Hant", "por_Latn")
M2M100 = ("en", "zh", "pt", "ast")


@pytest.mark.parametrize(
    ("tag", "codes", "found"),
    [
        ("zh", NLLB, "zho_Hans"),
        ("zh-Hant", NLLB, "zho_Hant"),
        ("zho_Hant", NLLB, "zho_Hant"),
        ("en-GB", NLLB, "eng_Latn"),
        ("EN", M2M100, "en"),
        ("eng_Latn", M2M100, "en"),
        ("ast", M2M100, "ast"),
        ("de", NLLB, None),
        ("xx", M2M100, None),
    ],
)
def test_a_language_is_found_by_its_tag(tag: str, codes: tuple[str, ...], found: str | None) -> None:
    assert language_code(tag, codes) == found


def test_a_language_has_a_name_in_prompts() -> None:
    assert [language_name(tag) for tag in ("zh", "pt-BR", "tlh")] == ["Chinese", "Portuguese (BR)", "tlh"]
