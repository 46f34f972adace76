"""The vision tower of SmolVLM and Idefics3, in pieces that take milliseconds, so that replies continue between them.

Each tile is encoded by itself: patches, the layers of a SigLIP encoder (Zhai et al. 2023), then a pixel shuffle into fewer
and wider states that the language model reads like embeddings. The states are those of the transformers module, from
the same weights; both are compared at the start (`engine.loading.loader`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.step_layout import Span
from engine.vision.image import Image, PlacedImage, Tiling, plain

PIECE = 1_000_000_000
"""About how many multiply-adds a piece has: some ten milliseconds on two cores."""

FEWEST_ROWS = 16

EncodingSteps = Generator[None, None, Tensor]
"""Work that may be abandoned after any piece. It returns the states at its end."""


class VisionTower(nn.Module):
    """Encodes tiles. `side`: a tile's width and height in pixels; `tokens`: how many states it becomes."""

    def __init__(self, module: Any, scale: Tensor, *, side: int) -> None:
        """Take over a module's `vision_model` and `connector`. `scale`: the input for each value of a channel, (3, 256)."""
        super().__init__()
        vision = module.vision_model
        self.embeddings: Any = vision.embeddings
        self.layers: Any = vision.encoder.layers
        self.norm: nn.LayerNorm = vision.post_layernorm
        self.connector: nn.Module = module.connector
        self.side = side
        self.scale = scale
        self._patches: int = side // vision.embeddings.patch_size
        self._tokens: int = self._patches**2 // module.connector.scale_factor**2

    @property
    def tokens(self) -> int:
        """How many states a tile becomes."""
        return self._tokens

    @property
    def device(self) -> torch.device:
        """The device that it runs on."""
        return next(self.parameters()).device

    def num_parameters(self) -> int:
        """Return how many weights it has."""
        return sum(weight.numel() for weight in self.parameters())

    def values(self, points: Tensor) -> Tensor:
        """Return the input values for the pixels of a tile, (3, side, side) of uint8."""
        return torch.stack([scale[one.long()] for scale, one in zip(self.scale, points, strict=True)])

    def look(self, points: Tensor) -> EncodingSteps:
        """Yield after each piece; return the states, (tiles * tokens, hidden). `points`: uint8, (tiles, 3, side, side)."""
        made = []
        for tile in points:
            states = yield from self._tile(tile)
            made.append(states)
        return torch.cat(made)

    def _tile(self, points: Tensor) -> EncodingSteps:
        values = self.values(points)
        yield
        seen = torch.ones(1, self._patches, self._patches, dtype=torch.bool, device=values.device)
        values = values.unsqueeze(0).to(self.norm.weight.dtype)
        states: Tensor = self.embeddings(pixel_values=values, patch_attention_mask=seen)[0]
        yield
        for layer in self.layers:
            attention = yield from self._attended(layer, states)
            states = states + attention
            cost = len(states) * (layer.mlp.fc1.weight.numel() + layer.mlp.fc2.weight.numel())
            widened = yield from _by_rows(states, cost, nn.Sequential(layer.layer_norm2, layer.mlp))
            states = states + widened
        made: Tensor = self.connector(self.norm(states).unsqueeze(0))
        yield
        return made.reshape(-1, made.shape[-1])

    def _attended(self, layer: Any, states: Tensor) -> EncodingSteps:
        attention, rows = layer.self_attn, len(states)
        shape = (rows, attention.num_heads, -1)
        parts = []
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            projected = yield from _by_rows(
                states, rows * linear.weight.numel(), nn.Sequential(layer.layer_norm1, linear)
            )
            parts.append(projected.view(shape).transpose(0, 1))
        queries, keys, values = parts

        def mixed(some: Tensor) -> Tensor:
            seen = functional.scaled_dot_product_attention(
                some.transpose(0, 1), keys, values, scale=attention.scale
            )
            made: Tensor = attention.out_proj(seen.transpose(0, 1).reshape(len(some), -1))
            return made

        cost = rows * (2 * rows * states.shape[-1] + attention.out_proj.weight.numel())
        return (yield from _by_rows(queries.transpose(0, 1), cost, mixed))


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The facts about a model that takes images. `token`: the id that stands for a piece of an image in a prompt."""

    tower: VisionTower
    tiling: Tiling
    token: int


def _by_rows(states: Tensor, cost: int, compute: Callable[[Tensor], Tensor]) -> EncodingSteps:
    """Compute rows of states in pieces. `cost`: multiply-adds of all of them."""
    step = max(FEWEST_ROWS, len(states) * PIECE // max(1, cost))
    made = []
    for start in range(0, len(states), step):
        made.append(compute(states[start : start + step]))
        yield
    return torch.cat(made)


def finished(pieces: EncodingSteps) -> Tensor:
    """Compute all pieces at once; return the states."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            states: Tensor = done.value
            return states


def replaced(embedded: Tensor, shown: Iterable[tuple[int, Tensor]]) -> Tensor:
    """Return embedded tokens, (rows, hidden), with the states of each image in the rows from its place on."""
    made = embedded.clone()
    for row, states in shown:
        made[row : row + len(states)] = states
    return made


Rows = tuple[tuple[int, Tensor], ...]


class ImageInputs:
    """The images that a request shows. Their states are kept until the request ends, since it may be computed again."""

    def __init__(self, shown: Sequence[PlacedImage], vision_config: VisionConfig) -> None:
        """Take the images of a prompt, and the facts about the model."""
        self._shown = shown
        self._tokens = vision_config.tiling.tokens
        self._token = vision_config.token
        self._states: dict[int, Tensor] = {}

    def image(self, number: int) -> Image:
        """Return image `number`."""
        return self._shown[number].image

    def tiles(self, number: int) -> int:
        """Return how many tiles an image has."""
        return len(self._shown[number].starts)

    def add_states(self, number: int, states: Tensor) -> None:
        """Take the states of an image, (tiles * tokens, hidden)."""
        self._states[number] = states

    def missing(self, computed: int) -> int | None:
        """Return the number of the next image to encode, if the first `computed` tokens of the prompt are computed."""
        for number, one in enumerate(self._shown):
            if number not in self._states and one.stop(self._tokens) > computed:
                return number
        return None

    def plain(self, tokens: Sequence[int]) -> list[int]:
        """Return tokens as the model reads them, without the keys of images."""
        return plain(tokens, self._token)

    def span(self, span: Span) -> Span:
        """Return a span with the states of the images in it."""
        rows = tuple(self._rows(span.start, span.stop))
        return Span(
            span.slot, span.start, self.plain(span.tokens), span.samples, span.pages, span.source, rows
        )

    def _rows(self, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        for number, one in enumerate(self._shown):
            for tile, begin in enumerate(one.starts):
                first, last = max(begin, start), min(begin + self._tokens, stop)
                if first < last:
                    before = tile * self._tokens - begin
                    yield first - start, self._states[number][before + first : before + last]
