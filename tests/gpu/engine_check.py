"""The engine on the device with random weights: agreement with transformers, throughput, cancels: `… SHAPE`."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from engine.execution.executor import LoadedModel
from engine.kv_cache import kv_budget, page_size
from engine.loading.probe import probe
from engine.messages import Chunk, Finished, Output, Params
from engine.model.cuda.graphs import PendingTokens
from engine.scheduling.core import EngineCore
from engine.step_layout import Span
from engine.text.reply_text import PreparedRequest, ReplyStep, SamplingParams
from tests.bench.engine.shapes import SHAPES, Shape
from tests.bench.engine.weights import _config, _tokenizer
from tests.gpu.results import DEVICE, ON_CUDA, expect, keep, print_line, quantile

GREEDY = SamplingParams(1, False, 1.0, 1.0, 0, 1.0, None, None)
TOP_P = msgspec.structs.replace(GREEDY, do_sample=True, temperature=0.8, top_p=0.95)
TOP_K = msgspec.structs.replace(TOP_P, top_k=20)

MOST_AT_ONCE = 256 if ON_CUDA else 8
LEVELS = (1, 64, 256) if ON_CUDA else (1, 4)
NEW = 96 if ON_CUDA else 8
MOST_KV_BYTES = 40 * 2**30 if ON_CUDA else 2**28
LONG_PROMPT = 7000 if ON_CUDA else 300
COMPARED_PROMPT = 700 if ON_CUDA else 150
GREEDY_PROMPT, GREEDY_NEW = 64, 24
MOST_STEPS_AFTER_CANCEL = 1


class Tokens:
    """A reply that keeps its token ids, and has a character for each."""

    written = ""
    stop_string = None
    logprobs = None

    def __init__(self) -> None:
        self.ids: list[int] = []

    def push(self, token_id: int) -> ReplyStep:
        self.ids.append(token_id)
        return ReplyStep(("x",))

    def flush(self) -> tuple[()]:
        return ()


class DeviceWait:
    """The seconds for which the host waited for tokens of the device."""

    def __init__(self) -> None:
        self.seconds = 0.0
        fetch = PendingTokens.numbers

        def timed(coming: PendingTokens) -> list[int]:
            began = time.perf_counter()
            numbers = fetch(coming)
            self.seconds += time.perf_counter() - began
            return numbers

        PendingTokens.numbers = timed  # type: ignore[method-assign]


class EngineCheck:
    """One model, its core and the results so far."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.device = torch.device(DEVICE)
        self.facts: dict[str, Any] = {}
        self.dice = random.Random(0)
        self.requests = 0
        self.wait = DeviceWait()
        torch.manual_seed(0)
        if ON_CUDA:
            torch.cuda.set_device(self.device)
        module = self.drawn()
        self.compared = self.prompt(COMPARED_PROMPT)
        self.exact_logits, self.expected_logits, self.expected_tokens = self.by_transformers(module)
        self.core, self.bytes_per_token = self.loaded(module)
        self.runner: Any = self.core._executor._runner
        self.graphs = self.runner._graphs

    def report(self, line: str) -> None:
        print_line(f"{self.shape.name}: {line}")
        keep("engine.json", {self.shape.name: self.facts})

    def drawn(self) -> PreTrainedModel:
        """Draw the weights on the device."""
        kind: Any = Qwen2ForCausalLM if self.shape.qwen else LlamaForCausalLM
        began = time.perf_counter()
        with torch.device(self.device):
            module = kind._from_config(_config(self.shape), dtype=torch.bfloat16, attn_implementation="sdpa")
        with torch.no_grad():
            module.lm_head.weight.normal_(0.0, self.shape.logit_spread / self.shape.hidden**0.5)
        self.weight_bytes = sum(
            weight.nbytes
            for name, weight in module.named_parameters()
            if self.shape.tied or "embed_tokens" not in name  # a step reads only some rows of an embedding
        )
        took = time.perf_counter() - began
        self.report(f"drawn in {took:.0f} s, each step reads {self.weight_bytes / 1e9:.2f} GB")
        return module.eval()  # type: ignore[no-any-return]

    @torch.inference_mode()
    def by_transformers(self, module: Any) -> tuple[Tensor, Tensor, list[int]]:
        """Return the last logits of a prompt, in float32 and in bfloat16, and the greedy reply to a shorter one."""
        ids = torch.tensor([self.compared], device=self.device)
        logits = module(ids, use_cache=False, logits_to_keep=1).logits[0, -1].float()
        made = module.generate(
            ids[:, :GREEDY_PROMPT], max_new_tokens=GREEDY_NEW, do_sample=False, pad_token_id=0
        )
        for weight in module.parameters():
            weight.data = weight.data.float()
        exact = module(ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        for weight in module.parameters():
            weight.data = weight.data.bfloat16()
        return exact, logits, made[0, GREEDY_PROMPT:].tolist()

    def loaded(self, module: Any) -> tuple[EngineCore, int]:
        """Return the core of a model, and the bytes of keys and values of one token."""
        module.set_attn_implementation("eager")
        probed = probe(module, self.shape.vocabulary)
        if probed.module is not module:
            module.model.layers = torch.nn.ModuleList()  # the fused form has its own weights
        budget = kv_budget(
            min(int(0.8 * torch.cuda.mem_get_info(self.device)[0]), MOST_KV_BYTES)
            if ON_CUDA
            else MOST_KV_BYTES,
            bytes_per_token=probed.bytes_per_token,
            window=self.shape.window,
            max_batch=MOST_AT_ONCE,
            page_size=page_size(self.device.type),
        )
        model = LoadedModel(
            self.shape.name, probed.module, _tokenizer(self.shape), Params(), frozenset(), MOST_AT_ONCE,
            self.shape.vocabulary, budget,
        )  # fmt: skip
        began = time.perf_counter()
        core = EngineCore(model)
        self.page_size = budget.page_size
        self.facts["core s"] = time.perf_counter() - began
        self.report(
            f"{type(probed.module).__name__}, core in {self.facts['core s']:.0f} s, {budget.pages} pages"
        )
        return core, probed.bytes_per_token

    def check_graphs(self) -> None:
        if not ON_CUDA:
            return
        expect(self.graphs is not None, "steps are recorded as CUDA graphs")
        if self.graphs is not None:
            missing = sorted(set(self.graphs._rows) - set(self.graphs._recorded))
            self.report(f"{len(self.graphs._recorded)} steps are recorded")
            expect(not missing, f"steps of these numbers of rows can't be recorded: {missing}")

    def prompt(self, tokens: int) -> list[int]:
        return [self.dice.randrange(self.shape.vocabulary) for _ in range(tokens)]

    def submit(
        self, prompt: Sequence[int], new: int, sampling: SamplingParams, reply: Tokens | None = None
    ) -> str:
        self.requests += 1
        name = f"r{self.requests}"
        limits = msgspec.structs.replace(sampling, max_new_tokens=new)
        self.core.submit(PreparedRequest(name, prompt, limits, reply or Tokens(), cache_salt=name))
        return name

    def drain(self) -> None:
        while self.core.busy:
            self.core.step()

    def check_agreement(self) -> None:
        """Compare with transformers: the logits of a prompt, and a greedy reply that is computed beside others."""
        reply = Tokens()
        self.submit(self.compared[:GREEDY_PROMPT], GREEDY_NEW, GREEDY, reply)
        for number in range(3):
            self.submit(self.prompt(40 + LONG_PROMPT // 20 * number), 30, TOP_P)
        self.drain()
        pairs = zip(reply.ids, self.expected_tokens, strict=True)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        pages = list(range(-(-COMPARED_PROMPT // self.page_size)))
        logits = self.runner.run([Span(0, 0, self.compared, samples=True, pages=pages)])[0].float()
        error, theirs = (distance(one, self.exact_logits) for one in (logits, self.expected_logits))
        self.facts |= {"greedy tokens as generate": same, "error": error, "error of transformers": theirs}
        self.report(
            f"{same} of {GREEDY_NEW} greedy tokens as generate; logits {error:.3f} apart from float32,"
            f" those of transformers {theirs:.3f}"
        )
        expect(same > 0, "the first greedy token is that of generate")
        expect(error < 1.2 * theirs, f"logits are {error:.3f} apart from float32, transformers' {theirs:.3f}")

    def load(self, at_once: int, prompt: int, new: int, sampling: SamplingParams, title: str) -> None:
        """Measure equal requests that are sent at the same time."""
        prompts = [self.prompt(prompt) for _ in range(at_once)]
        sent = time.perf_counter()
        for tokens in prompts:
            self.submit(tokens, new, sampling)
        steps, hosts, made, first = [], [], 0, None
        while self.core.busy:
            self.wait.seconds, began = 0.0, time.perf_counter()
            chunks = [output for output in self.core.step() if isinstance(output, Chunk)]
            ended = time.perf_counter()
            made += sum(chunk.tokens for chunk in chunks)
            if chunks and first is None:
                first = ended - sent
            if len(chunks) == at_once:
                steps.append(ended - began)
                hosts.append(ended - began - self.wait.seconds)
        expect(made == at_once * new, f"{title}: {at_once} replies of {new} tokens, not {made} tokens in all")
        took = time.perf_counter() - sent
        facts = {"tokens/s": made / took, "first token ms": 1e3 * (first or 0.0)}
        if steady := steps[2:]:  # short replies may never all run in the same step
            step = statistics.median(steady)
            read = self.weight_bytes + at_once * (prompt + new / 2) * self.bytes_per_token
            facts |= {
                "decode tokens/s": at_once / step,
                "step ms p50": 1e3 * step,
                "step ms p99": 1e3 * quantile(steady, 0.99),
                "host ms p50": 1e3 * statistics.median(hosts[2:]),
                "GB/s": read / step / 1e9,
            }
        self.facts[title] = facts
        self.report(f"{title}: " + ", ".join(f"{name} {value:,.1f}" for name, value in facts.items()))

    def measure(self) -> None:
        """Measure throughput: levels with and without CUDA graphs, ways of sampling, lengths of prompts."""
        if ON_CUDA:
            self.load(16, 32, 8, TOP_P, "warm-up")
        for graphs in (self.graphs, None) if self.graphs else (None,):
            self.runner._graphs = graphs
            for at_once in LEVELS:
                self.load(at_once, 64, NEW, TOP_P, f"{at_once} at once, graphs {'on' if graphs else 'off'}")
        self.runner._graphs = self.graphs
        self.load(LEVELS[1], 64, NEW // 2, GREEDY, f"{LEVELS[1]} at once, greedy")
        self.load(LEVELS[1], 64, NEW // 2, TOP_K, f"{LEVELS[1]} at once, top-k 20")
        if ON_CUDA:
            self.load(64, 1000, 64, TOP_P, "64 at once, prompts of 1000 tokens")
            self.load(1, LONG_PROMPT, 32, TOP_P, f"1 at once, a prompt of {LONG_PROMPT} tokens")

    def check_cancels(self) -> None:
        """Cancel replies in decode and in prefill: a cancel costs at most a step."""
        names = [self.submit(self.prompt(64), 4000 if ON_CUDA else 60, TOP_P) for _ in range(LEVELS[1])]
        for _ in range(30 if ON_CUDA else 4):
            self.core.step()
        ends = []
        for name in names[: len(names) // 2]:
            for _ in range(self.dice.randrange(1, 4)):
                self.core.step()
            ends.append(self.cancelled(name))
        for name in names:
            self.core.cancel(name)
        self.drain()
        long = self.submit(self.prompt(LONG_PROMPT), 8, TOP_P)
        for _ in range(2):
            self.core.step()
        in_prefill = self.cancelled(long)
        self.drain()
        most = max(steps for steps, _ in [*ends, in_prefill])
        times = [took for _, took in ends]
        self.facts["cancel"] = {
            "most steps after": most,
            "ms p50": statistics.median(times),
            "ms max": max(times),
            "ms in a prefill": in_prefill[1],
        }
        self.report(f"cancel: {self.facts['cancel']}")
        expect(most <= MOST_STEPS_AFTER_CANCEL, f"{most} steps ran for a request after its cancel")

    def cancelled(self, name: str) -> tuple[int, float]:
        """Cancel a request; return the steps that were started for it since, and the milliseconds to its end."""
        began = time.perf_counter()
        self.core.cancel(name)
        while self.core.busy:
            if ends := [output for output in self.core.step() if is_end(output, name)]:
                return ends[0].steps_after or 0, 1e3 * (time.perf_counter() - began)
        raise AssertionError(f"{name} was cancelled and never ended")


def distance(ours: Tensor, exact: Tensor) -> float:
    return float((ours - exact).norm() / exact.norm())


def is_end(output: Output, name: str) -> bool:
    return isinstance(output, Finished) and output.request_id == name


def main() -> None:
    check = EngineCheck(SHAPES[sys.argv[1]])
    check.check_graphs()
    check.check_agreement()
    check.measure()
    check.check_cancels()


if __name__ == "__main__":
    main()
