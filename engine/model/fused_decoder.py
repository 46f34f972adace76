"""Forward passes over pages: by transformers' modules, and by a fused form of Llama-like models.

transformers' modules call attention by the name `midstream`. They say themselves what a query may see: causal, a sliding
window. Other rules are refused.

The fused form has few, large operations, so that a step costs little besides matrix products. Queries, keys and values are one
product, gate and up another. Rotation takes three operations.
The logits are those of the transformers module, from the same weights; the probe compares both before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)
from transformers.activations import SiLUActivation
from transformers.masking_utils import (
    causal_mask_function,
    sliding_window_causal_mask_function,
)

from engine.kv_cache import LayerPages, PagedCache
from engine.model.attention import AttentionNotSupported, AttentionParams, Backend, Reference
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.kernels import Cpu
from engine.model.cuda.operators import Cuda
from engine.step_layout import StepLayout

NAME = "midstream"

MaskFunction = Callable[[Tensor, int, Tensor, Tensor], Tensor]

CAUSAL: MaskFunction = cast("MaskFunction", causal_mask_function)
"""transformers' rule that a query sees no later key. The cast is needed since its annotations say integers."""


NOT_BUILT = {
    "s_aux": "has attention sinks (s_aux)",
    "position_bias": "adds a bias by position to its scores (position_bias)",
}
"""Arguments of an attention that change its scores, and what they do."""


class Paged(NamedTuple):
    """What a module passes on to its attention, as the keyword argument `paged` of its forward pass."""

    step: StepLayout
    backend: Backend


class MaskRule(NamedTuple):
    """What a query may see, as the model states it: see `AttentionParams`."""

    window: int | None = None


def backend_for(device: torch.device, dtype: torch.dtype) -> Backend:
    """Return the fastest attention backend for a device and a dtype."""
    if device.type == "cuda" and find_spec("triton") is not None:
        return Cuda(processors=torch.cuda.get_device_properties(device).multi_processor_count)
    return Cpu() if cpu_kernels.serve(torch.empty(0, dtype=dtype, device=device)) else Reference()


def keeps_latents(module: nn.Module) -> bool:
    """Whether a module caches latents, and makes keys and values of them when it reads them (DeepSeek's attention)."""
    return getattr(getattr(module, "config", None), "kv_lora_rank", None) is not None


def gathered(step: StepLayout) -> StepLayout:
    """Return the layout of a step whose contexts were gathered, so that each is one long page."""
    tables = torch.arange(len(step.tables), dtype=torch.int32, device=step.tables.device)
    return replace(step, tables=tables.unsqueeze(1))


def register() -> None:
    """Register `NAME` with transformers. Calling it again does no harm."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, mask_rule)


def mask_rule(*, mask_function: MaskFunction, use_vmap: bool = False, **_sizes: Any) -> MaskRule:
    """Return the rule of the mask that a model asks for. Raises AttentionNotSupported if `AttentionParams` can't state it."""
    if mask_function is CAUSAL:
        return MaskRule()
    if use_vmap or _code(mask_function) != _code(sliding_window_causal_mask_function(1)):
        raise AttentionNotSupported("it masks attention with rules of its own")
    overlay = _parts(mask_function)[0]
    place = overlay.__code__.co_freevars.index("sliding_window")
    return MaskRule(overlay.__closure__[place].cell_contents)


def paged_attention(  # noqa: PLR0917 - transformers calls it with these, in this order
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: MaskRule,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend with a step's queries, (1, heads, rows, size), to a layer's pages, which the cache handed out.

    Returns (1, rows, heads, value size). Raises AttentionNotSupported if the model changes scores in other ways.
    """
    paged = _checked(module, attention_mask, kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    terms = AttentionParams(scale, *attention_mask, softcap=kwargs.get("softcap"))
    layer = LayerPages(key, value)
    if keeps_latents(module):
        layer = LayerPages(*(made.contiguous().transpose(1, 2) for made in layer))
    mixed = paged.backend.attend(query[0].transpose(0, 1), layer, paged.step, terms)
    return mixed.unsqueeze(0), None


def _checked(module: nn.Module, rule: object, kwargs: dict[str, Any]) -> Paged:
    paged = kwargs.get("paged")
    if not isinstance(paged, Paged) or not isinstance(rule, MaskRule):
        raise AttentionNotSupported(
            f"{type(module).__name__} does not pass on the arguments of its attention"
        )
    for feature, words in NOT_BUILT.items():
        if kwargs.get(feature) is not None:
            raise AttentionNotSupported(f"{type(module).__name__} {words}, which is not built")
    return paged


def _parts(rule: Any) -> tuple[Any, ...]:
    """Return the functions that a rule of transformers joins with `and`; none if it is no such rule."""
    found = [cell.cell_contents for cell in getattr(rule, "__closure__", None) or ()]
    return found[0] if len(found) == 1 and isinstance(found[0], tuple) else ()


def _code(rule: Any) -> tuple[Any, ...]:
    """Return a key for a kind of rule, whatever its numbers are."""
    return (rule.__code__, *(part.__code__ for part in _parts(rule)))


FIXED_ROTARIES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles at a position do not change with the length of the text."""

_FIRST_POSITIONS = 2048


class RotaryTable:
    """Looks up the angles of a transformers rotary embedding. Its tables grow with the positions that are asked for."""

    def __init__(self, rotary: Any) -> None:
        """Take a rotary embedding of one of `FIXED_ROTARIES`."""
        self._rotary = rotary
        self._tables: tuple[Tensor, Tensor] | None = None

    def at(self, positions: Tensor, extent: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines, each (rows, 1, size), of positions below `extent`.

        The first half of the sines is negated, so a roll by half the size replaces transformers' `rotate_half`.
        """
        cosine, sine = self.tables(extent, positions.device, dtype)
        return cosine[positions].unsqueeze(1), sine[positions].unsqueeze(1)

    def tables(self, extent: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return all cosines and signed sines, each (positions, size) with `extent` positions or more."""
        if self._tables is None or len(self._tables[0]) < extent:
            count = _FIRST_POSITIONS
            while count < extent:
                count *= 2
            like = torch.empty((), dtype=dtype, device=device)
            cosine, sine = self._rotary(like, torch.arange(count, device=device).unsqueeze(0))
            first, second = sine[0].chunk(2, dim=-1)
            self._tables = cosine[0].contiguous(), torch.cat((-first, second), dim=-1)
        return self._tables


FUSED_TYPES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


class Logits(NamedTuple):
    """The result of a forward pass: logits, (1, rows, vocabulary)."""

    logits: Tensor


def rms_norm(norm: Any) -> nn.RMSNorm:
    """Return a module's root mean square normalization (Zhang and Sennrich 2019) as torch computes it."""
    made = nn.RMSNorm(norm.weight.shape, norm.variance_epsilon, device="meta")
    made.weight = norm.weight
    return made


class FusedLayer(nn.Module):
    """One decoder layer."""

    def __init__(self, layer: Any, number: int) -> None:
        super().__init__()
        inner, outer = layer.self_attn, layer.mlp
        self._number = number
        self.size: int = inner.head_dim
        self.terms = AttentionParams(inner.scaling)
        self.heads = inner.q_proj.out_features // self.size
        self.kv_heads = inner.k_proj.out_features // self.size
        self._activation = outer.act_fn
        self.is_silu = isinstance(outer.act_fn, nn.SiLU | SiLUActivation)
        self.before_attention, self.before_mlp = (
            rms_norm(layer.input_layernorm),
            rms_norm(layer.post_attention_layernorm),
        )
        self.qkv = joined(inner.q_proj, inner.k_proj, inner.v_proj)
        self.output = inner.o_proj
        self.gate_up = joined(outer.gate_proj, outer.up_proj)
        self.down = outer.down_proj
        normed = getattr(inner, "q_norm", None) is not None
        self.query_norm = rms_norm(inner.q_norm) if normed else None
        self.key_norm = rms_norm(inner.k_norm) if normed else None

    def forward(self, states: Tensor, step: _Step) -> Tensor:
        """Take states, (rows, hidden), through the layer."""
        rows = len(states)
        projected = self.qkv(self.before_attention(states)).view(rows, -1, self.size)
        both, values = projected.split_with_sizes([self.heads + self.kv_heads, self.kv_heads], dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = both.split_with_sizes([self.heads, self.kv_heads], dim=1)
            both = torch.cat((self.query_norm(queries), self.key_norm(keys)), dim=1)
        # Rotation: RoFormer, Su et al. 2021.
        turned = torch.addcmul(both * step.cosine, both.roll(self.size // 2, -1), step.sine)
        queries, keys = turned.split_with_sizes([self.heads, self.kv_heads], dim=1)
        layer = step.cache.layer(self._number, keys, values)
        step.backend.store(layer, step.layout, keys, values)
        mixed = step.backend.attend(queries, layer, step.layout, self.terms)
        states = states + self.output(mixed.reshape(rows, -1))
        gate, up = self.gate_up(self.before_mlp(states)).chunk(2, dim=-1)
        made: Tensor = states + self.down(self._activation(gate) * up)
        return made


class FusedDecoder(nn.Module):
    """A whole model, which the runner calls like a transformers module."""

    def __init__(self, module: Any) -> None:
        """Take over the weights of a module, which stays usable and shares them."""
        super().__init__()
        self._parameters_taken: int = module.num_parameters()
        self.embedding: nn.Embedding = module.model.embed_tokens
        self.layers = nn.ModuleList(FusedLayer(layer, n) for n, layer in enumerate(module.model.layers))
        self.norm = rms_norm(module.model.norm)
        self.head = module.lm_head
        self.rotary = RotaryTable(module.model.rotary_emb)

    @property
    def device(self) -> torch.device:
        """The device that it runs on."""
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it computes in."""
        return self.embedding.weight.dtype

    def num_parameters(self) -> int:
        """Return how many weights it has."""
        return self._parameters_taken

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of tokens."""
        return self.embedding

    def forward(
        self,
        *,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor,
        past_key_values: PagedCache,
        logits_to_keep: int | Tensor,
        paged: Paged,
        use_cache: bool = True,  # noqa: ARG002 - the runner passes it to every module
    ) -> Logits:
        """Compute a step. Ids and positions: (1, rows); embeddings in place of ids: (1, rows, hidden)."""
        if inputs_embeds is not None:
            states = inputs_embeds[0]
        else:
            assert input_ids is not None  # noqa: S101 - one of both is given
            states = self.embedding(input_ids[0])
        angles = self.rotary.at(position_ids[0], paged.step.extent, self.dtype)
        step = _Step(*paged, past_key_values, *angles)
        for layer in self.layers:
            states = layer(states, step)
        kept = states if isinstance(logits_to_keep, int) else states[logits_to_keep]
        return Logits(self.head(self.norm(kept)).unsqueeze(0))


class _Step(NamedTuple):
    """What all layers share in one step. `cosine` and `sine`: (rows, 1, size)."""

    layout: StepLayout
    backend: Backend
    cache: PagedCache
    cosine: Tensor
    sine: Tensor


def fused_decoder(module: PreTrainedModel) -> FusedDecoder | None:
    """Return the fused forward pass of a module; None if its type or its configuration has none."""
    if type(module) not in FUSED_TYPES or not _is_plain(module):
        return None
    return FusedDecoder(module).eval()


def _is_plain(module: Any) -> bool:
    """Whether every layer has full causal attention, plain linear layers only, and angles that don't change."""
    config = module.config
    windows = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    sliding = getattr(config, "sliding_window", None) is not None and "layer_types" not in config.to_dict()
    linears = all(
        type(part) is nn.Linear
        for name, part in module.named_modules()
        if name.endswith(("_proj", "lm_head"))
    )
    return not windows and not sliding and linears and module.model.rotary_emb.rope_type in FIXED_ROTARIES


@torch.no_grad()
def joined(*linears: nn.Linear) -> nn.Linear:
    """Return one linear layer with the outputs of all, in order. The originals' weights become views of the new one's."""
    weight = torch.cat([linear.weight for linear in linears])
    one = nn.Linear(weight.shape[1], weight.shape[0], bias=linears[0].bias is not None, device="meta")
    one.weight = nn.Parameter(weight, requires_grad=False)
    sizes = [linear.out_features for linear in linears]
    for linear, part in zip(linears, torch.split(weight, sizes), strict=True):
        linear.weight = nn.Parameter(part, requires_grad=False)
    if linears[0].bias is not None:
        one.bias = nn.Parameter(torch.cat([linear.bias for linear in linears]), requires_grad=False)
    return one
