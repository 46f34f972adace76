"""The table of families in docs/models.md is what the installed transformers gives."""

from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM

from tests.engine.families_table import PAPER, answer, paper

DOCUMENTED = ("llama", "qwen3", "gpt_oss", "falcon", "mamba", "bert")


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_whole_table_is_that_of_today() -> None:
    assert paper() == PAPER.read_text()


def test_some_families_are_answered_as_the_table_says() -> None:
    rows = [line.split("|")[1:3] for line in PAPER.read_text().splitlines() if line.startswith("|")]
    served = {name for first, second in rows for name in second.split(", ") if "Served" in first}
    assert served
    known = {kind.model_type: kind for kind in AutoModelForCausalLM._model_mapping}
    assert [answer(known[name]) for name in DOCUMENTED] == [
        "", "", "attention sinks", "can't be replaced", "keeps a state", "rules of its own",
    ]  # fmt: skip
