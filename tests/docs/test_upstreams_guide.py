"""The files of the guide to upstreams, as they stand there: the service reads them as the guide says."""

from __future__ import annotations

from pathlib import Path

from app.models import ModelTables, tables_of
from tests.app.in_process_service import settings_with
from tests.docs.documents import ROOT, snippets

ONE, SEVERAL, EMBEDDER, FEATURES = snippets(ROOT / "docs" / "upstreams.md", "toml")


def read(tmp_path: Path, text: str) -> ModelTables:
    file = tmp_path / "upstreams.toml"
    file.write_text(text)
    return tables_of(settings_with(config=str(file)))


def test_one_server_is_served_by_its_models_name(tmp_path: Path) -> None:
    file = read(tmp_path, ONE)
    assert file.names == ["Qwen/Qwen3-8B"]
    assert file.upstream[0].features.tools


def test_several_models_have_their_names_and_who_answers_for_them(tmp_path: Path) -> None:
    file = read(tmp_path, SEVERAL)
    assert file.names == ["big", "small"]
    (big,) = file.model
    assert (big.aliases, big.fallbacks) == (("gpt-4o",), ("small",))
    assert file.engine[0].max_batch == 8


def test_features_are_told_below_the_server_that_has_them(tmp_path: Path) -> None:
    file = read(tmp_path, ONE + "\n" + FEATURES)
    assert file.upstream[0].features.affinity_header == "X-Dynamo-Session-ID"
    assert file.upstream[0].features.prompt_cache_key


def test_a_model_for_embeddings_stands_beside_those_that_chat(tmp_path: Path) -> None:
    file = read(tmp_path, ONE + "\n" + EMBEDDER)
    assert file.names == ["Qwen/Qwen3-8B"]
    assert [(one.public_name, one.dimensions) for one in file.embedder] == [("BAAI/bge-m3", False)]
