"""Chat completions, completions and models, as clients of OpenAI, vLLM and others ask for them."""
