"""A model's size, from its `config.json` and its files. Loads nothing, and does not use torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from app.settings import Settings
from app.setup.conversion import PACKAGES, converted_folder
from app.setup.model_files import in_cache, weights_of

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
"""Bytes of a number."""
_MATRICES_OF_MLP = 3

Count = Annotated[int, Meta(ge=1)]


class ShapeUnknown(Exception):
    """A model's size is not known. The message is for the user of the command."""


class _Quantized(msgspec.Struct):
    quant_method: str = ""


class _Text(msgspec.Struct, kw_only=True):
    """A decoder's shape, from its configuration."""

    num_hidden_layers: Count | None = None
    hidden_size: Count | None = None
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count | None = None
    vocab_size: Count | None = None
    max_position_embeddings: Count | None = None
    tie_word_embeddings: bool = False
    num_experts: Count | None = None
    num_local_experts: Count | None = None
    kv_lora_rank: int | None = None
    n_routed_experts: int | None = None
    moe_intermediate_size: Count | None = None
    dtype: str | None = None
    torch_dtype: str | None = None


class _Config(_Text, kw_only=True):
    """The whole file. Models of images and text have a separate part for the decoder."""

    text_config: _Text | None = None
    quantization_config: _Quantized | None = None


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A model's size. `stored_bytes`: of its weights on disk, None if there are none; `stored_dtype`: their type."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    window: int | None
    parameters: int
    stored_dtype: str
    stored_bytes: int | None

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Return the bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * WIDTHS[dtype]

    def weights_bytes(self, dtype: str) -> int:
        """Return the bytes of the weights: the files' size if there are files, else computed from the shape."""
        if self.stored_bytes is None:
            return self.parameters * WIDTHS[dtype]
        return self.stored_bytes * WIDTHS[dtype] // WIDTHS.get(self.stored_dtype, WIDTHS[dtype])


def shape_of(model: str, data_dir: str | None = None) -> Shape:
    """Return the shape of a model in a folder or in the hub's cache, of a package, or of a converted GGUF file.

    `data_dir`: the data folder, if not the default one. Raises ShapeUnknown.
    """
    folder = Path(model).expanduser()
    if model in PACKAGES and not folder.exists():
        return _of_config(model, Path("config.json"), msgspec.convert(PACKAGES[model].config, _Config), None)
    if folder.is_file():
        return _shape(model, _converted(model, data_dir))
    if not folder.is_dir():
        kept = _cached_folder(model)
        if kept is None:
            raise ShapeUnknown(
                f"{model} is neither a folder nor in the hub's cache. Fetch its config.json: hf download {model} config.json"
            )
        folder = kept
    return _shape(model, folder)


def _converted(file: str, data_dir: str | None) -> Path:
    """Return the folder of a GGUF file that `serve` has converted."""
    settings = Settings(model=file)
    if data_dir is not None:
        settings = msgspec.structs.replace(settings, data_dir=data_dir)
    folder = converted_folder(settings)
    if folder is None:
        raise ShapeUnknown(f"{file} is a file, but not a GGUF file. Give the folder of the model.")
    if not folder.is_dir():
        raise ShapeUnknown(
            f"{file} was not converted yet. `midstream serve --model {file}` does that once; "
            "`midstream doctor` with the same option says how much memory it takes."
        )
    return folder


def _cached_folder(model: str) -> Path | None:
    try:
        return in_cache(model)
    except ValueError as error:  # a missing path is not a name of the hub
        raise ShapeUnknown(f"There is no folder {model}, and it is no name of a model on the hub.") from error


def _shape(name: str, folder: Path) -> Shape:
    file = folder / "config.json"
    try:
        config = msgspec.json.decode(file.read_bytes(), type=_Config)
    except OSError as error:
        raise ShapeUnknown(f"{file} can't be read: {error}.") from error
    except msgspec.DecodeError as error:
        raise ShapeUnknown(f"{file} is no configuration of a model: {error}.") from error
    return _of_config(name, file, config, weights_of(folder) or None)


def _of_config(name: str, file: Path, config: _Config, stored_bytes: int | None) -> Shape:
    text = config.text_config or config
    _check_kind(file, text)
    layers, hidden, heads = (
        _required(file, field, getattr(text, field))
        for field in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    quantized = config.quantization_config is not None and config.quantization_config.quant_method
    dtype = text.dtype or text.torch_dtype or config.dtype or config.torch_dtype or "bfloat16"
    kv_heads, head_dim = text.num_key_value_heads or heads, text.head_dim or hidden // heads
    return Shape(
        name=Path(name).name,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=text.max_position_embeddings,
        parameters=_parameters(text, layers, hidden, heads * head_dim, kv_heads * head_dim),
        stored_dtype=quantized or dtype,
        stored_bytes=stored_bytes,
    )


def _check_kind(file: Path, text: _Text) -> None:
    """Raise ShapeUnknown unless it is a Llama-like decoder: the figures would be far off."""
    if text.kv_lora_rank:
        raise ShapeUnknown(
            f"{file} has kv_lora_rank: keys and values that are kept compressed can't be sized here."
        )
    if text.n_routed_experts:
        raise ShapeUnknown(
            f"{file} has n_routed_experts: layers with shared and routed experts can't be sized here."
        )


def _required(file: Path, field: str, value: int | None) -> int:
    if value is None:
        raise ShapeUnknown(f"{file} does not say {field}.")
    return value


def _parameters(text: _Text, layers: int, hidden: int, queries: int, keys: int) -> int:
    """Return the number of weights of a Llama-like decoder of this shape, without norms and biases."""
    attention = 2 * hidden * (queries + keys)
    experts = text.num_experts or text.num_local_experts or 1
    inner = (text.moe_intermediate_size if experts > 1 else None) or text.intermediate_size or 4 * hidden
    embeddings = (text.vocab_size or 0) * hidden * (1 if text.tie_word_embeddings else 2)
    return layers * (attention + experts * _MATRICES_OF_MLP * hidden * inner) + embeddings
