#!/usr/bin/env bash
# Builds llama-server from the source that llama-cpp-python carries: FOLDER PYTHON.
set -euo pipefail
version=0.3.36
home=$(realpath -m "$1")
rm -rf "$home"
"$2" -m venv "$home"
pip=("$home/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet cmake ninja
"${pip[@]}" download --quiet --no-binary :all: --no-deps --dest "$home/sdist" "llama-cpp-python==$version"
mkdir "$home/source"
tar -xzf "$home/sdist/llama_cpp_python-$version.tar.gz" --strip-components=1 -C "$home/source"
llama=$home/source/vendor/llama.cpp
"${pip[@]}" install --quiet "$llama/gguf-py"
"$home/bin/cmake" -S "$llama" -B "$home/build" -G Ninja -DCMAKE_MAKE_PROGRAM="$home/bin/ninja" -DCMAKE_BUILD_TYPE=Release \
    -DLLAMA_{OPENSSL,USE_PREBUILT_UI,BUILD_TESTS,BUILD_EXAMPLES}=OFF
"$home/bin/ninja" -C "$home/build" -j2 llama-server
echo "$version" >"$home/.installed"
