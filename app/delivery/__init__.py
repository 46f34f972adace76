"""Delivers the page to browsers: in few files, compressed, cached until they change."""
