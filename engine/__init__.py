"""The engine floor: requests in, tokens out. It knows models, batches and text; it knows no client and no store."""
