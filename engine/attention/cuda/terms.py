"""What attention over pages is asked for: the terms of a layer, and where a step's queries and keys are."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Terms:
    """How a layer attends; causal always. Constants of the model: kernels are compiled for them.

    `window`: a query sees so many positions, its own included. `chunk`: it sees none before the last multiple of it.
    `softcap`: scores are kept between it and its negative.
    """

    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PagedStep:
    """Where the queries of one step are and what they attend to; all tensors int32 on the device.

    The first `decode_rows` requests have one query each, those behind have as many as `query_starts` says, up to
    `longest_prompt`. What is not a tensor is known to the host and is part of what a recorded step was recorded for.
    """

    decode_rows: int
    longest_prompt: int
    """0 where all requests are of one query."""
    tables: Tensor
    """(requests, pages of the longest context): the pages of each request, in order."""
    query_starts: Tensor
    """(requests + 1,): where the queries of each request begin."""
    lengths: Tensor
    """(requests,): how many keys each has, those of this step included; 0 for a row of nobody."""
    key_starts: Tensor
    """(requests + 1,): the lengths summed up."""
    pages: Tensor
    """(tokens,): the page that each token's keys and values are stored in; -1 for a row of nobody."""
    offsets: Tensor
    """(tokens,): and where in that page."""


@dataclass(frozen=True, slots=True, eq=False)
class PagedLayer:
    """The pages of one layer, (pages, positions of a page, KV heads, size), and how it attends.

    `sinks`, (heads,): scores of a key without a value that every query of a head sees (Xiao et al. 2023).
    """

    keys: Tensor
    values: Tensor
    terms: Terms
    sinks: Tensor | None = None
