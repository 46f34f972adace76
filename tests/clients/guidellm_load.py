"""guidellm: a load of synthetic prompts by several readers at once, and what its report says of them."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from shared import say

REQUESTS = 24
OUTPUT_TOKENS = 32
TOKENIZER = os.environ["GUIDELLM_TOKENIZER"]

with tempfile.TemporaryDirectory() as folder:
    report = Path(folder) / "report.json"
    url = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
    key = os.environ["OPENAI_API_KEY"]
    command = [
        *(str(Path(sys.executable).with_name("guidellm")), "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={url},model=midstream-demo,api_key={key}"),
        *("--profile", "kind=concurrent,streams=4"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=48,output_tokens={OUTPUT_TOKENS}"),
        *("--output", f"kind=json,path={report}"),
    ]
    environ = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]

metrics = benchmark["metrics"]
tokens = metrics["output_token_count"]["successful"]
at_once = metrics["request_concurrency"]["successful"]["max"]
say("load", requests=metrics["request_totals"], at_once=at_once, tokens=[tokens["min"], tokens["max"]])
