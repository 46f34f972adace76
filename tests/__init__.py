"""The tests, as a tree that mirrors the floors."""
