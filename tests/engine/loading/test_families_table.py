"""The list of families in docs/models.md is what the installed transformers gives."""

from __future__ import annotations

import re

import pytest
from transformers import AutoModelForCausalLM

from tests.engine.families_table import PAGE, answer, page

DOCUMENTED = ("llama", "qwen3", "gpt_oss", "falcon", "mamba", "bert")


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_whole_list_is_that_of_today() -> None:
    assert page() == PAGE.read_text()


def test_some_families_are_answered_as_the_list_says() -> None:
    served = re.findall(r"^- \*\*Served\*\* \(\d+\): ([^:]+?)\n- ", PAGE.read_text(), re.MULTILINE)
    assert {"llama", "qwen3"} <= set(" ".join(served[0].split()).split(", "))
    known = {kind.model_type: kind for kind in AutoModelForCausalLM._model_mapping}
    assert [answer(known[name]) for name in DOCUMENTED] == [
        "", "", "attention sinks", "can't be replaced", "keeps a state", "rules of its own",
    ]  # fmt: skip
