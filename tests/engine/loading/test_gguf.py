"""A GGUF file becomes the model that it was made from, or is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import ModelNotUsable
from engine.loading.__main__ import convert
from engine.loading.loader import load
from engine.machine import EngineOptions
from tests.engine.conftest import TEMPLATE, small_tokenizer
from tests.engine.gguf_files import some_llama, write_gguf


def test_the_converted_model_is_the_one_that_was_packed_whatever_lies_beside_it(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json"):
        (tmp_path / name).write_text('{"tokenizer_class": "T5Tokenizer", "model_type": "t5"}')
    (tmp_path / "chat_template.jinja").write_text("Another model's.")
    advised = {"temp": 0.25, "top_p": 0.75, "top_k": 7, "min_p": 0.125, "penalty_repeat": 1.5}
    packed = some_llama()
    convert(write_gguf(tmp_path / "tiny.gguf", packed, sampling=advised), tmp_path / "made")
    model = load(EngineOptions(model=str(tmp_path / "made"), device="cpu", dtype="float32"))
    ids = torch.arange(20)[None]
    reread = type(packed).from_pretrained(tmp_path / "made", dtype=torch.float32)
    assert torch.equal(reread(ids).logits, packed(ids).logits)
    assert (model.context_tokens, model.eos_ids) == (512, {small_tokenizer().eos_token_id})
    text = "hello there, 你好"
    assert model.tokenizer(text).input_ids == small_tokenizer()(text).input_ids
    assert model.tokenizer.chat_template == TEMPLATE
    found = model.defaults
    assert found.do_sample
    assert (found.temperature, found.top_p, found.top_k) == (0.25, 0.75, 7)
    assert (found.min_p, found.repetition_penalty) == (0.125, 1.5)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"architecture": "hovercraft"}, "hovercraft"),
        ({"architecture": "falcon"}, "llama-server"),
        ({"template": None}, "no chat template"),
        ({"scaled": True}, "scales its positions"),
        ({"without": "blk.1.ffn_up"}, "lacks 1 of the weights"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_file_that_would_be_served_wrongly_is_refused(
    how: dict[str, Any], words: str, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", some_llama(), **how)
    with pytest.raises(ModelNotUsable, match=words) as caught:
        convert(file, tmp_path / "made")
    assert str(file) in str(caught.value)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("kept", [4, 100, 0.5, 0.999])
def test_a_file_that_was_cut_off_is_refused(kept: float, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", some_llama())
    whole = file.read_bytes()
    file.write_bytes(whole[: kept if kept > 1 else int(kept * len(whole))])
    with pytest.raises(ModelNotUsable, match="can't be read"):
        convert(file, tmp_path / "made")
