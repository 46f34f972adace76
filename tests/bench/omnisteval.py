"""Computes LongYAAL and chrF with `omnisteval`, in an environment of its own below `.cache`.

LongYAAL: Polák et al., "Better Late Than Never", arXiv 2509.17349. chrF: Popović, WMT 2015, by its `sacrebleu`.
"""

from __future__ import annotations

import re
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.bench.translation_lag import EmissionTimes

OMNISTEVAL = "omnisteval==0.1.10"
CACHE = Path(".cache/omnisteval")
_LINE = re.compile(r"^\s+(\S.*?)\s{2,}(-?\d+\.\d+)\s*$", re.MULTILINE)


class Scores(msgspec.Struct, frozen=True):
    """`lag_ms`: LongYAAL by the received source; `lag_computing_ms`: by the clock. `chrf`: from 0 to 100."""

    lag_ms: float
    lag_computing_ms: float
    chrf: float


class Sentence(msgspec.Struct, frozen=True):
    """A sentence of a document: when its words began to come, how long that took, in seconds, and its translation."""

    begun_s: float
    took_s: float
    reference: str


def install() -> None:
    """Create the environment if it does not exist. Raises CalledProcessError, OSError."""
    if (CACHE / "bin" / "omnisteval").exists():
        return
    venv.create(CACHE, with_pip=True)
    subprocess.run([CACHE / "bin" / "python", "-m", "pip", "install", "-q", OMNISTEVAL], check=True)


def score(
    folder: Path, emissions: Sequence[EmissionTimes], sentences: Sequence[Sequence[Sentence]]
) -> Scores:
    """Score documents against their sentences, by characters; the files stay. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, emissions, sentences)
    files = {
        "--speech_segmentation": "segments.json",
        "--ref_sentences_file": "references.txt",
        "--hypothesis_file": "hypothesis.jsonl",
    }
    named = [word for option, name in files.items() for word in (option, str(folder / name))]
    command = [
        str(CACHE / "bin" / "omnisteval"),
        "longform",
        *named,
        "--char_level",
        "--bleu_tokenizer",
        "zh",
    ]
    report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (folder / "report.txt").write_text(report)
    return read(report)


def read(report: str) -> Scores:
    """Read its report. Raises KeyError if a figure is missing."""
    found = {name: float(value) for name, value in _LINE.findall(report)}
    return Scores(found["LongYAAL (CU)"], found["LongYAAL (CA)"], found["chrF"])


def _write(folder: Path, emissions: Sequence[EmissionTimes], sentences: Sequence[Sequence[Sentence]]) -> None:
    """Return a time for each character that is not a blank."""
    lines, segments, references = [], [], []
    for number, (one, of) in enumerate(zip(emissions, sentences, strict=True)):
        places = [place for place, character in enumerate(one.text) if not character.isspace()]
        lines.append(
            {
                "source": f"{number}.wav",
                "prediction": "".join(one.text[place] for place in places),
                "delays": [one.delays[place] for place in places],
                "elapsed": [one.elapsed[place] for place in places],
                "source_length": one.source_ms,
            }
        )
        for sentence in of:
            segments.append({"wav": f"{number}.wav", "offset": sentence.begun_s, "duration": sentence.took_s})
            references.append("".join(sentence.reference.split()))
    (folder / "hypothesis.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
    (folder / "segments.json").write_bytes(msgspec.json.encode(segments))
    (folder / "references.txt").write_text("\n".join(references) + "\n")
