"""guidellm: a load of three requests of so many tokens each, and what its report counts."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TOKENS = 16

with tempfile.TemporaryDirectory() as folder:
    report = Path(folder) / "report.json"
    subprocess.run(
        [
            *(str(Path(sys.executable).with_name("guidellm")), "benchmark"),
            *("--target", os.environ["JSON_BASE_URL"].removesuffix("/v1")),
            *("--model", "midstream-demo", "--profile", "synchronous", "--max-requests", "3"),
            *("--data", f"prompt_tokens=32,output_tokens={TOKENS}"),
            *("--processor", os.environ["TOKENIZER"], "--output-path", str(report)),
        ],
        check=True,
        stdout=sys.stderr,
    )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
requests = benchmark["requests"]
tokens = [one["output_metrics"]["text_tokens"] for one in requests["successful"]]
print(json.dumps({"did": "load", "tokens": tokens, "errors": len(requests["errored"])}))
