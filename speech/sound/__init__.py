"""Sound as bytes: what files say of themselves, and samples as the recognizer and clients want them."""
