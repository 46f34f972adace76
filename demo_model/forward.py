"""The forward pass of a Llama for training on a CPU: the same function as transformers', in half the time.

Everything but the weights is bfloat16, as it is when the checkpoint serves. For rows this short, plain matrix products beat
the fused attention kernel. Serving never comes here.
"""

from typing import Any

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM

_HALF = torch.bfloat16
_LONG_ROWS = 700


def last_states(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """The normed states after the last layer, (rows, length, hidden), of right-padded `ids` (rows, length)."""
    config: Any = model.config
    turn = _rotation(ids.shape[1], config.head_dim, config.rope_parameters["rope_theta"])
    states = functional.embedding(ids, model.model.embed_tokens.weight).to(_HALF)
    layers: Any = model.model.layers
    for layer in layers:
        states = states + _attend(layer.self_attn, _norm(states, layer.input_layernorm), turn)
        states = states + _feed_forward(layer.mlp, _norm(states, layer.post_attention_layernorm))
    return _norm(states, model.model.norm)


def logits(model: LlamaForCausalLM, states: torch.Tensor) -> torch.Tensor:
    """The logits of some states, (count, vocabulary) in float32."""
    return functional.linear(states, model.lm_head.weight.to(_HALF)).float()


def _attend(attention: Any, states: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    rows, length, _ = states.shape
    width, shared = attention.head_dim, attention.num_key_value_groups
    projections = (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
    mixed = (
        functional.linear(states, torch.cat(projections).to(_HALF))
        .view(rows, length, -1, width)
        .transpose(1, 2)
    )
    pairs = mixed.shape[1] // (shared + 2)
    turned = _turn(mixed[:, : pairs * (shared + 1)], turn)
    queries, keys, values = (
        turned[:, : pairs * shared],
        turned[:, pairs * shared :],
        mixed[:, pairs * (shared + 1) :],
    )
    if length > _LONG_ROWS:
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    else:
        seen = _short_attention(queries, keys, values)
    return functional.linear(
        seen.transpose(1, 2).reshape(rows, length, -1), attention.o_proj.weight.to(_HALF)
    )


def _short_attention(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    rows, heads, length, width = queries.shape
    pairs = rows * keys.shape[1]
    shared = rows * heads // pairs
    future = torch.full((length, length), -1e9, dtype=_HALF).triu(1).repeat(shared, 1).expand(pairs, -1, -1)
    keys = keys.reshape(pairs, length, width).transpose(1, 2)
    scores = torch.baddbmm(future, queries.reshape(pairs, shared * length, width), keys, alpha=width**-0.5)
    return torch.bmm(scores.softmax(-1), values.reshape(pairs, length, width)).view(
        rows, heads, length, width
    )


def _feed_forward(block: Any, states: torch.Tensor) -> torch.Tensor:
    both = torch.cat((block.gate_proj.weight, block.up_proj.weight)).to(_HALF)
    gate, up = functional.linear(states, both).chunk(2, -1)
    return functional.linear(functional.silu(gate) * up, block.down_proj.weight.to(_HALF))


def _norm(states: torch.Tensor, norm: Any) -> torch.Tensor:
    return functional.rms_norm(states, states.shape[-1:], norm.weight.to(_HALF), norm.variance_epsilon)


def _rotation(length: int, width: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(length).float(), theta ** -(torch.arange(0, width, 2).float() / width))
    return angles.cos().to(_HALF), angles.sin().to(_HALF)


def _turn(heads: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cosine, sine = rotation
    left, right = heads.chunk(2, -1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), -1)
