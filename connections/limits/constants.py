"""Constants of the wire protocol."""

from __future__ import annotations

MAX_FRAME_BYTES = 64 * 1024
"""A larger frame closes the connection with 1009 (RFC 6455, section 7.4.1)."""
