"""The forward pass of T5, mT5 and Flan-T5 over pages, on the reference attention backend only.

They encode positions as a bias of scores, by the distance of a key from a query (Raffel et al. 2020, section 2.1). None of
the kernels knows that, so these models run in plain torch. Norms and feed-forward networks are the module's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import MT5ForConditionalGeneration, T5ForConditionalGeneration

from engine.cache.layout import StepLayout, TranslationLayout
from engine.cache.paged_cache import PagedCache
from engine.model.attention import AttentionParams, Backend, Reference
from engine.model.encoder_decoder import Seq2SeqModel

SERVED_TYPES = (T5ForConditionalGeneration, MT5ForConditionalGeneration)

POSITIONS = 512
"""The most tokens of a source, and of a target. The models have no bound, but were trained with this length."""

_TERMS = AttentionParams(1.0)


class RelativePositionBias(nn.Module):
    """The bias that one half adds to scores, the same in all of its layers."""

    def __init__(self, stack: Any) -> None:
        """Take one half of a module."""
        super().__init__()
        attention = stack.block[0].layer[0].SelfAttention
        self._table = attention.relative_attention_bias
        self._bucket = attention._relative_position_bucket  # noqa: SLF001 - transformers has no public one
        self._terms: dict[str, Any] = {
            "bidirectional": not stack.is_decoder,
            "num_buckets": attention.relative_attention_num_buckets,
            "max_distance": attention.relative_attention_max_distance,
        }

    def forward(self, positions: Tensor, keys: Tensor) -> Tensor:
        """Return (requests, heads, queries, keys) for queries at (requests, queries) and keys at (keys)."""
        apart = keys - positions.unsqueeze(-1)
        made: Tensor = self._table(self._bucket(apart, **self._terms))
        return made.movedim(-1, 1)


class Attention(nn.Module):
    """The projections of one attention, and the norm before it."""

    def __init__(self, layer: Any, attention: Any) -> None:
        super().__init__()
        self.norm = layer.layer_norm
        self.queries, self.keys, self.values = attention.q, attention.k, attention.v
        self.output = attention.o
        self._size: int = attention.key_value_proj_dim

    def heads(self, projection: nn.Module, states: Tensor) -> Tensor:
        """Return a projection of states, (rows, heads, size)."""
        made: Tensor = projection(states)
        return made.view(len(states), -1, self._size)

    def joined(self, mixed: Tensor) -> Tensor:
        """Return the output, (rows, hidden), for the heads' results, (rows, heads, size)."""
        made: Tensor = self.output(mixed.reshape(len(mixed), -1))
        return made


class EncoderLayer(nn.Module):
    """One layer of the encoder. Each row of a source sees all rows of it."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.own = Attention(block.layer[0], block.layer[0].SelfAttention)
        self.mlp = block.layer[-1]

    def forward(self, states: Tensor, bounds: Sequence[int], distances: RelativePositionBias) -> Tensor:
        """Take states, (rows, hidden), through the layer. `bounds`: where each source begins, and the end."""
        own, given = self.own, self.own.norm(states)
        queries, keys, values = (own.heads(one, given) for one in (own.queries, own.keys, own.values))
        mixed = torch.empty_like(queries)
        for start, stop in pairwise(bounds):
            places = torch.arange(stop - start, device=states.device)
            sliced_queries, known, sliced_values = (
                one[start:stop].transpose(0, 1) for one in (queries, keys, values)
            )
            added = distances(places.unsqueeze(0), places)[0].to(sliced_queries.dtype)
            seen = functional.scaled_dot_product_attention(
                sliced_queries, known, sliced_values, attn_mask=added, scale=1.0
            )
            mixed[start:stop] = seen.transpose(0, 1)
        made: Tensor = self.mlp(states + own.joined(mixed))
        return made


class DecoderLayer(nn.Module):
    """One layer of the decoder. Rows attend to the target up to themselves, then to all of their source."""

    def __init__(self, block: Any, number: int) -> None:
        super().__init__()
        self._number = number
        self.own = Attention(block.layer[0], block.layer[0].SelfAttention)
        self.cross = Attention(block.layer[1], block.layer[1].EncDecAttention)
        self.mlp = block.layer[-1]

    def keep(self, encoded: Tensor, layout: StepLayout, cache: PagedCache, backend: Backend) -> None:
        """Store the keys and values of sources for this layer, from their encoded states, (rows, hidden)."""
        keys, values = (
            self.cross.heads(one, encoded).contiguous() for one in (self.cross.keys, self.cross.values)
        )
        backend.store(cache.layer(self._number, keys, values), layout, keys, values)

    def forward(
        self,
        states: Tensor,
        step: TranslationLayout,
        cache: PagedCache,
        backend: Reference,
        added: RelativePositionBias,
    ) -> Tensor:
        """Take states, (rows, hidden), through the layer."""
        own, given = self.own, self.own.norm(states)
        queries, keys, values = (own.heads(one, given) for one in (own.queries, own.keys, own.values))
        layer = cache.layer(self._number, keys, values)
        backend.store(layer, step.own, keys, values)
        states = states + own.joined(backend.attend_with(added, queries, layer, step.own, _TERMS))
        cross_queries = self.cross.heads(self.cross.queries, self.cross.norm(states))
        states = states + self.cross.joined(backend.attend(cross_queries, layer, step.cross, _TERMS))
        made: Tensor = self.mlp(states)
        return made


class T5(Seq2SeqModel):
    """A whole T5 model."""

    def __init__(self, module: Any) -> None:
        """Take over the weights of a module, which stays usable and shares them."""
        super().__init__(module)
        encoder, decoder = module.encoder, module.decoder
        self.tokens: Tensor = module.shared.weight
        self.encoder = nn.ModuleList(EncoderLayer(block) for block in encoder.block)
        self.decoder = nn.ModuleList(
            DecoderLayer(block, number) for number, block in enumerate(decoder.block)
        )
        self.encoder_norm, self.decoder_norm = encoder.final_layer_norm, decoder.final_layer_norm
        self.source_distances, self.target_distances = (
            RelativePositionBias(encoder),
            RelativePositionBias(decoder),
        )
        scaled: bool = getattr(module.config, "scale_decoder_outputs", False)
        self._scale: float = module.model_dim**-0.5 if scaled else 1.0
        self.source_vocabulary = len(self.tokens)
        self.source_positions = self.target_positions = POSITIONS

    def attention(self) -> Reference:
        """Return the backend that can add a bias to scores."""
        return Reference()

    def encode(self, layout: StepLayout, cache: PagedCache, backend: Backend) -> None:
        """Encode the sources of a layout, and store the keys and values that the decoder reads of them."""
        bounds = [0, *(int(stop) for stop in layout.query_starts[1:].tolist())]
        states = functional.embedding(layout.input_ids[0, : layout.rows], self.tokens)
        for layer in self.encoder:
            states = layer(states, bounds, self.source_distances)
        states = self.encoder_norm(states)
        for layer in self.decoder:
            layer.keep(states, layout, cache, backend)  # type: ignore[operator] # a list of modules has no closer type

    def decode(self, ids: Tensor, step: TranslationLayout, cache: PagedCache, backend: Backend) -> Tensor:
        """Return the logits, (rows, vocabulary), of the rows of targets that the step samples from."""
        assert isinstance(backend, Reference)  # noqa: S101 - it is the one that `attention` returned
        states = functional.embedding(ids, self.tokens)
        for layer in self.decoder:
            states = layer(states, step, cache, backend, self.target_distances)
        if len(step.sampled) < len(states):
            states = states[step.sampled]
        made: Tensor = self.head(self.decoder_norm(states) * self._scale)
        return made
