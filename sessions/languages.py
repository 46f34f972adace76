"""Names of languages for prompts, and their codes in translation models. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages import Languages

AUTO = "auto"
"""The language of the source is not given."""
_KNOWN = {
    "ar": ("Arabic", "ara"),
    "bg": ("Bulgarian", "bul"),
    "bn": ("Bengali", "ben"),
    "ca": ("Catalan", "cat"),
    "cs": ("Czech", "ces"),
    "da": ("Danish", "dan"),
    "de": ("German", "deu"),
    "el": ("Greek", "ell"),
    "en": ("English", "eng"),
    "es": ("Spanish", "spa"),
    "et": ("Estonian", "est"),
    "fa": ("Persian", "pes"),
    "fi": ("Finnish", "fin"),
    "fr": ("French", "fra"),
    "he": ("Hebrew", "heb"),
    "hi": ("Hindi", "hin"),
    "hr": ("Croatian", "hrv"),
    "hu": ("Hungarian", "hun"),
    "id": ("Indonesian", "ind"),
    "it": ("Italian", "ita"),
    "ja": ("Japanese", "jpn"),
    "ko": ("Korean", "kor"),
    "lt": ("Lithuanian", "lit"),
    "lv": ("Latvian", "lvs"),
    "ms": ("Malay", "zsm"),
    "nl": ("Dutch", "nld"),
    "no": ("Norwegian", "nob"),
    "pl": ("Polish", "pol"),
    "pt": ("Portuguese", "por"),
    "ro": ("Romanian", "ron"),
    "ru": ("Russian", "rus"),
    "sk": ("Slovak", "slk"),
    "sl": ("Slovenian", "slv"),
    "sr": ("Serbian", "srp"),
    "sv": ("Swedish", "swe"),
    "sw": ("Swahili", "swh"),
    "ta": ("Tamil", "tam"),
    "th": ("Thai", "tha"),
    "tr": ("Turkish", "tur"),
    "uk": ("Ukrainian", "ukr"),
    "ur": ("Urdu", "urd"),
    "vi": ("Vietnamese", "vie"),
    "zh": ("Chinese", "zho"),
}
"""Names, and NLLB's codes of three letters (ISO 639-3); for a language with several, its most spoken variety's."""


def language_name(tag: str) -> str:
    """Return the English name of a language by its tag (`zh`, `pt-BR`); an unknown tag is its own name."""
    primary, _, region = tag.partition("-")
    if (known := _KNOWN.get(primary.lower())) is None:
        return tag
    return f"{known[0]} ({region})" if region else known[0]


def language_code(tag: str, codes: Sequence[str]) -> str | None:
    """Return a model's code for a language, among `codes`; None if it has none.

    `tag` itself, else the code of its language and script, else the language's first: `zh` is `zho_Hans` in NLLB, `zh-Hant` is
    `zho_Hant`.
    """
    if tag in codes:
        return tag
    primary, script = _parts(tag)
    same = [code for code in codes if _parts(code)[0] == primary]
    return next((code for code in same if _parts(code)[1] == script), same[0] if same else None)


def has_languages(known: Languages, source: str, target: str) -> bool:
    """Return whether a model translates between two languages. `AUTO` or empty: any of its languages."""
    sources = not source or source == AUTO or language_code(source, known.sources) is not None
    return sources and (not target or language_code(target, known.targets) is not None)


def _parts(tag: str) -> tuple[str, str]:
    """Return the language of a tag or a code, as its three-letter code if known, and the rest."""
    primary, _, rest = tag.replace("_", "-").lower().partition("-")
    return (_KNOWN[primary][1] if primary in _KNOWN else primary), rest
