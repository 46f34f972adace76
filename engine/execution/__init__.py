"""One step: spans of tokens through the model, and their next tokens out."""
