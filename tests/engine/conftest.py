"""Models that tests of the engine share. They are made here, without a hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from engine.model.cpu import kernels as cpu_kernels

NO_KERNELS = cpu_kernels.NoKernels("this test is of torch's operations")

needs_kernels = pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble())

VECTORS = ("plain", "AVX2", "AVX-512", "AVX-512 with bfloat16")

TEMPLATE = (
    "{% for message in messages %}{% if 'unspeakable' in message.content %}{{ raise_exception('unspeakable') }}{% endif %}"
    "{% if 'undividable' in message.content %}{{ 1 / 0 }}{% endif %}"
    "<s>{{ message.role }}: {{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


def small_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    backend.train_from_iterator(["hello there user assistant system"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models are slower with more threads, by far if the machine has other work."""
    torch.set_num_threads(1)


@pytest.fixture(params=["kernels of our own", "torch's operations"])
def cpu_operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs with each kind of operations."""
    if request.param == "torch's operations":
        monkeypatch.setattr(cpu_kernels, "_library", lambda: NO_KERNELS)
    elif trouble := cpu_kernels.trouble():
        pytest.skip(f"no kernels for CPUs: {trouble}")
    else:
        assert cpu_kernels.serve(torch.ones(1))


@contextmanager
def computing_on(threads: int) -> Iterator[None]:
    """Compute with so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs with each number of compute threads. References of tiny models are faster with one."""
    with computing_on(request.param):
        yield


@pytest.fixture(params=range(len(VECTORS)), ids=VECTORS)
def vectors(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs with each kind of vectors that this processor has."""
    if cpu_kernels.library().midstream_vectors(request.param) != request.param:
        cpu_kernels.library().midstream_vectors(-1)
        pytest.skip("this processor has none of these")
    yield
    cpu_kernels.library().midstream_vectors(-1)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Llama of random weights that never ends a reply by itself, and a template that refuses one word and breaks at another."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tokenizer = small_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] = 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
