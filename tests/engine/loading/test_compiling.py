"""A compiled forward pass says the same, or the model is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.errors import ModelNotUsable
from engine.loading.compiling import compile_forward
from engine.scheduling.core import EngineCore
from tests.engine.tiny_models import VOCABULARY, prepared_request, prompt, run_out, served, tokens_of

pytestmark = pytest.mark.skipif(
    " " in torch.__file__, reason="NOT TESTED: torch's compiler does not quote the path of its own headers"
)
uncovered = pytest.mark.no_cover
"""Half as long again otherwise: what would be traced is the compiler."""

Graph = Callable[..., list[object]]


def replies(core: EngineCore) -> list[list[int]]:
    for n in range(3):
        core.submit(prepared_request(str(n), prompt(5 + 9 * n, n)))
    outputs = run_out(core)
    return [tokens_of(outputs, str(n)) for n in range(3)]


class Compiler:
    """A real one of torch's; it counts its graphs. While it `lies` it leaves them as they are, and what they compute becomes zeros."""

    def __init__(self, name: str) -> None:
        self._compile: Any = torch._dynamo.lookup_backend(name)
        self.graphs = 0
        self.lies = False

    def __call__(self, graph: Any, inputs: Any) -> Graph:
        self.graphs += 1
        compiled = graph.forward if self.lies else self._compile(graph, inputs)

        def run(*arguments: object) -> list[object]:
            made = compiled(*arguments)
            return [zeroed(one) for one in made] if self.lies else made

        return run


def zeroed(made: object) -> object:
    return torch.zeros_like(made) if isinstance(made, torch.Tensor) and made.is_floating_point() else made


@pytest.fixture(scope="module", params=["aot_eager", pytest.param("inductor", marks=pytest.mark.deep)])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """One for all models of a kind: what it compiled for the first serves the others.

    Both are given the same graphs, taken from the model and lowered. `inductor` writes C++ of them then, which takes
    most of a minute and is torch's own business.
    """
    torch.compiler.reset()
    return Compiler(request.param)


@uncovered
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from within the compiler
def test_a_compiled_model_writes_what_it_wrote_and_nothing_is_left_to_compile_while_people_wait(
    compiler: Compiler,
) -> None:
    model = served("mistral")
    before = replies(EngineCore(model, step_target_s=1e-9))
    compile_forward(model.module, VOCABULARY, backend=compiler)
    warm = compiler.graphs
    assert replies(EngineCore(model, step_target_s=1e-9)) == before
    assert 0 < warm == compiler.graphs


@uncovered
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from within the compiler
def test_a_compiler_that_changes_what_is_said_is_not_trusted(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "lies", True)
    with pytest.raises(ModelNotUsable, match="gives different logits"):
        compile_forward(served("mistral").module, VOCABULARY, backend=compiler)


@pytest.fixture
def nothing_compiled_yet() -> None:
    """What the tests before compiled counts for nothing: the backend under test is asked in any order."""
    torch.compiler.reset()


@pytest.mark.usefixtures("nothing_compiled_yet")
def test_a_machine_that_can_not_compile_is_told_so() -> None:
    def backend(_graph: Graph, _inputs: object) -> Graph:
        raise RuntimeError("no compiler here")

    with pytest.raises(ModelNotUsable, match=r"--compile: LlamaForCausalLM .*no compiler here"):
        compile_forward(served("llama").module, VOCABULARY, backend=backend)


@pytest.mark.usefixtures("nothing_compiled_yet")
def test_a_compiler_that_runs_out_of_memory_is_no_fault_of_the_model() -> None:
    def backend(_graph: Graph, _inputs: object) -> Graph:
        torch.empty(2**58)
        raise AssertionError

    with pytest.raises(RuntimeError, match="allocate memory"):
        compile_forward(served("llama").module, VOCABULARY, backend=backend)
