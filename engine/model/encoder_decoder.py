"""The forward pass of encoder-decoders that translate (Marian, M2M100, NLLB, mBART), over pages, for many requests at once.

Their layers are those of the Transformer (Vaswani et al. 2017). They differ in where norms are, how positions are encoded,
and what is added to the logits. Linear layers see a flat list of rows. The logits are those of the transformers module,
from the same weights; a probe compares both before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    M2M100ForConditionalGeneration,
    MarianMTModel,
    MBartForConditionalGeneration,
)

from engine.kv_cache import PagedCache
from engine.model.attention import AttentionParams, Backend
from engine.model.fused_decoder import joined
from engine.step_layout import StepLayout, TranslationLayout

SERVED_TYPES = (MarianMTModel, M2M100ForConditionalGeneration, MBartForConditionalGeneration)

NORMED_BEFORE = (M2M100ForConditionalGeneration, MBartForConditionalGeneration)
"""The models whose layers normalize their inputs. Marian's normalize their outputs."""

NEVER = -1e9
"""The bias of a token that must not be written. It is finite, so that sums stay numbers in every dtype."""

Block = Callable[[Tensor], Tensor]


class Embedding(nn.Module):
    """Embeds tokens and their positions as states, (rows, hidden)."""

    def __init__(self, stack: Any) -> None:
        """Take one half of a module: its encoder or its decoder."""
        super().__init__()
        tokens = stack.embed_tokens
        self.weight: Tensor = tokens.weight
        self.scale: float = getattr(tokens, "embed_scale", None) or stack.embed_scale
        self.positions = _positions(stack.embed_positions)
        self.norm: nn.LayerNorm | None = getattr(stack, "layernorm_embedding", None)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed rows."""
        states = functional.embedding(ids, self.weight) * self.scale + self.positions[positions]
        return states if self.norm is None else self.norm(states)


def _positions(table: Any) -> Tensor:
    """Return the embeddings of positions from 0 on, (positions, hidden)."""
    if hasattr(table, "weights"):  # sinusoids whose positions start after the padding token
        weights: Tensor = table.weights
        return weights[table.padding_idx + 1 :]
    weight: Tensor = table.weight
    return weight.detach()[getattr(table, "offset", 0) :]


class Layer(nn.Module):
    """What layers of both halves share: a norm before or after each block, and the feed-forward network."""

    def __init__(self, layer: Any, *, before: bool) -> None:
        super().__init__()
        self.before = before
        self.size: int = layer.self_attn.head_dim
        self.heads: int = layer.self_attn.num_heads
        self.scale: float = layer.self_attn.scaling
        self.qkv = joined(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
        self.output = layer.self_attn.out_proj
        self.norm = layer.self_attn_layer_norm
        self.widen, self.narrow, self.mlp_norm = layer.fc1, layer.fc2, layer.final_layer_norm
        self.activation = layer.activation_fn

    def around(self, norm: nn.Module, states: Tensor, block: Block) -> Tensor:
        """Add a block's output to its input, `states`; `norm` comes before the block, or after the sum."""
        if self.before:
            return states + block(norm(states))
        made: Tensor = norm(states + block(states))
        return made

    def split(self, states: Tensor) -> Tensor:
        """Return queries, keys and values, (3, rows, heads, size)."""
        made: Tensor = self.qkv(states)
        return made.view(states.shape[0], 3, -1, self.size).transpose(0, 1)

    def mlp(self, states: Tensor) -> Tensor:
        """Compute the feed-forward network."""
        made: Tensor = self.narrow(self.activation(self.widen(states)))
        return made


class EncoderLayer(Layer):
    """One layer of the encoder. Each row of a source sees all rows of that source."""

    def forward(self, states: Tensor, bounds: Sequence[int]) -> Tensor:
        """Take states, (rows, hidden), through the layer. `bounds`: where each source begins, and the end."""
        states = self.around(self.norm, states, lambda given: self._attend(given, bounds))
        return self.around(self.mlp_norm, states, self.mlp)

    def _attend(self, states: Tensor, bounds: Sequence[int]) -> Tensor:
        projected = self.split(states).unbind()
        mixed = torch.empty_like(projected[0])
        for start, stop in pairwise(bounds):
            queries, keys, values = (one[start:stop].transpose(0, 1) for one in projected)
            seen = functional.scaled_dot_product_attention(queries, keys, values, scale=self.scale)
            mixed[start:stop] = seen.transpose(0, 1)
        made: Tensor = self.output(mixed.flatten(1))
        return made


class DecoderLayer(Layer):
    """One layer of the decoder. Rows attend to the target up to themselves, then to all of their source."""

    def __init__(self, layer: Any, number: int, *, before: bool) -> None:
        super().__init__(layer, before=before)
        cross = layer.encoder_attn
        self._number = number
        self.cross_queries, self.cross_output = cross.q_proj, cross.out_proj
        self.cross_pairs = joined(cross.k_proj, cross.v_proj)
        self.cross_norm = layer.encoder_attn_layer_norm
        self._terms = AttentionParams(self.scale)

    def keep(self, encoded: Tensor, layout: StepLayout, cache: PagedCache, backend: Backend) -> None:
        """Store the keys and values of sources for this layer, from their encoded states, (rows, hidden)."""
        keys, values = self.cross_pairs(encoded).view(len(encoded), 2, -1, self.size).unbind(1)
        backend.store(cache.layer(self._number, keys, values), layout, keys, values)

    def forward(self, states: Tensor, step: TranslationLayout, cache: PagedCache, backend: Backend) -> Tensor:
        """Take states, (rows, hidden), through the layer."""
        own, cross = step.own, step.cross

        def attend(given: Tensor) -> Tensor:
            queries, keys, values = self.split(given)
            layer = cache.layer(self._number, keys, values)
            backend.store(layer, own, keys, values)
            mixed = backend.attend(queries.contiguous(), layer, own, self._terms)
            made: Tensor = self.output(mixed.flatten(1))
            return made

        def look(given: Tensor) -> Tensor:
            queries = self.cross_queries(given).view(given.shape[0], -1, self.size)
            mixed = backend.attend(queries, cache.layers[self._number], cross, self._terms)
            made: Tensor = self.cross_output(mixed.flatten(1))
            return made

        states = self.around(self.norm, states, attend)
        states = self.around(self.cross_norm, states, look)
        return self.around(self.mlp_norm, states, self.mlp)


class EncoderDecoder(nn.Module):
    """The forward pass of a whole model that reads a source and writes a target.

    `source_vocabulary`: ids of sources are below it. `source_positions`, `target_positions`: the most tokens of each half.
    """

    def __init__(self, module: Any) -> None:
        """Take over the weights of a module, which stays usable and shares them."""
        super().__init__()
        self._parameters_taken: int = module.num_parameters()
        self.head = _head(module)
        before = isinstance(module, NORMED_BEFORE)
        encoder, decoder = module.model.encoder, module.model.decoder
        self.source, self.target = Embedding(encoder), Embedding(decoder)
        self.encoder = nn.ModuleList(EncoderLayer(layer, before=before) for layer in encoder.layers)
        self.decoder = nn.ModuleList(
            DecoderLayer(layer, number, before=before) for number, layer in enumerate(decoder.layers)
        )
        self.encoder_norm: nn.Module = getattr(encoder, "layer_norm", None) or nn.Identity()
        self.decoder_norm: nn.Module = getattr(decoder, "layer_norm", None) or nn.Identity()
        self.source_vocabulary = len(self.source.weight)
        self.source_positions, self.target_positions = len(self.source.positions), len(self.target.positions)

    @property
    def device(self) -> torch.device:
        """The device that it runs on."""
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it computes in."""
        dtype: torch.dtype = self.head.weight.dtype
        return dtype

    @property
    def vocabulary(self) -> int:
        """The number of tokens that it can write."""
        return len(self.head.weight)

    def num_parameters(self) -> int:
        """Return how many weights it has."""
        return self._parameters_taken

    @torch.no_grad()
    def forbid(self, tokens: Iterable[int]) -> None:
        """Never write these tokens."""
        for token in tokens:
            self.head.bias[token] = NEVER

    def encode(self, layout: StepLayout, cache: PagedCache, backend: Backend) -> None:
        """Encode the sources of a layout, and store their keys and values for the decoder."""
        rows = slice(0, layout.rows)
        bounds = [0, *(int(stop) for stop in layout.query_starts[1:].tolist())]
        states: Tensor = self.source(layout.input_ids[0, rows], layout.position_ids[0, rows])
        for layer in self.encoder:
            states = layer(states, bounds)
        states = self.encoder_norm(states)
        for layer in self.decoder:
            layer.keep(states, layout, cache, backend)  # type: ignore[operator] # a list of modules has no closer type

    def decode(self, ids: Tensor, step: TranslationLayout, cache: PagedCache, backend: Backend) -> Tensor:
        """Return the logits, (sampled rows, vocabulary), after the sampled rows of targets."""
        states: Tensor = self.target(ids, step.own.position_ids[0])
        for layer in self.decoder:
            states = layer(states, step, cache, backend)
        if len(step.sampled) < len(states):
            states = states[step.sampled]
        made: Tensor = self.head(self.decoder_norm(states))
        return made


def _head(module: Any) -> nn.Linear:
    """Return the linear layer that makes logits, with a bias of its own that `forbid` may change."""
    weight = module.lm_head.weight.detach()
    head = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    head.weight = nn.Parameter(weight, requires_grad=False)
    added = getattr(module, "final_logits_bias", None)
    bias = weight.new_zeros(len(weight)) if added is None else added[0].to(weight.dtype).clone()
    head.bias = nn.Parameter(bias, requires_grad=False)
    return head
