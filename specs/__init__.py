"""The service's specifications, generated from the types that it decodes and encodes with: `make specs` writes them, `make check` compares."""
