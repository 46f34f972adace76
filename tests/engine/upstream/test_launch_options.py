"""What vLLM is started with and installed with, and what its lines say."""

from __future__ import annotations

from email.parser import HeaderParser

import msgspec
import pytest

from engine.upstream.vllm import (
    MOST_CHARS,
    RESERVED,
    LaunchOptions,
    OutputReader,
    cause_of,
    checked_argument,
    command_of,
    environment_of,
    upstream_of,
)
from tools.vllm_install import requirements_of, torch_of

PLAIN = LaunchOptions(python="/env/bin/python", model="org/model", served_name="model")


def started_with(*given: str) -> LaunchOptions:
    return msgspec.structs.replace(PLAIN, arguments=tuple(map(checked_argument, given)))


def argument(options: LaunchOptions, name: str) -> str | None:
    """The value that vLLM takes: the last one."""
    found = [
        one.partition("=")[2] for one in command_of(options, 1234) if one.partition("=")[0] == f"--{name}"
    ]
    return found[-1] if found else None


def test_arguments_are_written_as_vllm_reads_them() -> None:
    given = ("tensor-parallel-size=4", "enable-lora", "max_model_len=8192", 'compilation-config={"level": 3}')
    assert tuple(map(checked_argument, given)) == (
        "--tensor-parallel-size=4",
        "--enable-lora",
        "--max-model-len=8192",
        '--compilation-config={"level": 3}',
    )
    assert checked_argument("--no-enable-prefix-caching") == "--no-enable-prefix-caching"
    assert checked_argument("hf-overrides.rope_theta=1") == "--hf-overrides.rope_theta=1"


@pytest.mark.parametrize("name", RESERVED)
def test_where_it_listens_and_who_may_ask_is_the_gateways_business(name: str) -> None:
    for given in (f"{name}=x", f"--{name}=x", name, name.replace("-", "_"), f"{name[:-1]}=x", f"no-{name}"):
        with pytest.raises(ValueError, match="the gateway's business"):
            checked_argument(given)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "=4",
        "-tp=4",
        "Tensor=4",
        "two words=3",
        "dtype=",
        "max-num-seqs=0",
        "max-num-seqs=many",
        "lora-modules=a",
    ],
)
def test_what_is_no_argument_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"is not an argument|has no value|names no"):
        checked_argument(given)


def test_settings_hold_where_no_argument_says_otherwise() -> None:
    assert argument(PLAIN, "max-num-seqs") == "32"
    chosen = started_with("max-num-seqs=200", "max-num-seqs=256", "dtype=half", "scheduling-policy=fcfs")
    assert argument(chosen, "max-num-seqs") == "256"
    assert argument(chosen, "dtype") == "half"
    upstream = upstream_of(chosen)
    assert (upstream.max_requests, upstream.features.priority) == (256, "off")
    assert upstream_of(PLAIN).features.priority == "low_first"


def test_tools_are_served_where_vllm_was_told_to_find_calls() -> None:
    found = started_with("enable-auto-tool-choice", "tool-call-parser=hermes")
    assert upstream_of(found).features.tools == "all"
    for chosen in (PLAIN, started_with("enable-auto-tool-choice"), started_with("tool-call-parser=hermes")):
        features = upstream_of(chosen).features
        assert (features.tools, features.format) == ("off", "structured_outputs")


def test_it_listens_on_loopback_whatever_else_is_said() -> None:
    forced = msgspec.structs.replace(PLAIN, arguments=("--host=0.0.0.0", "--port=1"))
    assert (argument(forced, "host"), argument(forced, "port")) == ("127.0.0.1", "1234")


def test_replies_are_asked_of_the_adapter_where_there_is_one() -> None:
    adapted = started_with("enable-lora", "lora-modules=support=/adapters/support")
    assert upstream_of(adapted).model == "support"
    assert upstream_of(PLAIN).model == "model"


def test_its_environment_is_not_the_gateways() -> None:
    inherited = {
        "MIDSTREAM_JWT_SECRET": "secret",
        "PYTHONPATH": "/ours",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "VLLM_API_KEY": "another",
        "VLLM_NO_USAGE_STATS": "0",
        "PATH": "/bin",
    }
    assert environment_of(inherited, "/env/bin/python", "key") == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "VLLM_API_KEY": "key",
        "VLLM_NO_USAGE_STATS": "0",
        "PATH": "/env/bin:/bin",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            [
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig",
                "  Value error, The heads (6) must be divisible. [type=value_error, input_value=A]",
                "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
            ],
            "Value error, The heads (6) must be divisible.",
        ),
        (
            [
                "(EngineCore pid=3) ERROR 11-22 18:38:12 [core.py:402] ValueError: Unsupported quantization",
                "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
            ],
            "ValueError: Unsupported quantization",
        ),
        (["all is well", "  raise ValueError('x')"], None),
    ],
)
def test_the_cause_of_an_end_is_no_mere_consequence(lines: list[str], cause: str | None) -> None:
    assert cause_of(lines) == cause


def test_lines_end_by_either_sign_and_have_a_longest_length() -> None:
    lines: list[str] = []
    reader = OutputReader(lines.append)
    for data in (b"one\r two\nth", b"ree\n\n\n", b"x" * (MOST_CHARS + 5), b"rest\n"):
        reader.data_received(data)
    assert lines == ["one", " two", "three", "x" * MOST_CHARS, "rest"]


def test_what_no_server_of_text_needs_is_left_out_and_torch_is_the_one_that_it_was_built_for() -> None:
    needs = (
        *("regex", "mistral_common[image]>=1.11.6", "opencv-python-headless>=4.13.0"),
        *("fastapi[standard]<0.137.0,>=0.133.0", 'six>=1.16.0; python_version > "3.11"'),
        *('torch==2.13.0+cpu; platform_machine == "x86_64"', 'torchvision; platform_machine != "riscv64"'),
        *('intel-openmp==2024.2.1; platform_machine == "x86_64"', 'zentorch==2.13.0.1; extra == "zen"'),
    )
    metadata = HeaderParser().parsestr("".join(f"Requires-Dist: {need}\n" for need in needs))
    assert requirements_of(metadata) == [
        *("regex", "fastapi[standard]<0.137.0,>=0.133.0", 'six>=1.16.0; python_version > "3.11"'),
        *("openai-harmony", "mistral_common"),
    ]
    assert torch_of(metadata) == "torch==2.13.0"
