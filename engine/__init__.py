"""The engine layer: requests in, tokens out. Knows models, batches and text, but neither clients nor the store."""
