"""Speech models of transformers: which are known, and how one is loaded. All but the preflight is for their processes."""
