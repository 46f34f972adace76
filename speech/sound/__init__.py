"""Sound as bytes: file headers, and conversions for recognizers and clients."""
