"""A result is cut to its limit in whole characters, and says so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessions.tools.tool_registry import cut_to

texts = st.text(alphabet=st.characters(codec=None) | st.sampled_from("\ud800€𝄞é"), max_size=60)


@given(texts, st.integers(0, 100))
def test_a_result_is_written_as_far_as_it_may_be(text: str, limit: int) -> None:
    written = text.encode("utf-8", "replace").decode()
    kept, line, rest = cut_to(text, limit).partition("\n[The result was cut here.")
    assert written.startswith(kept)
    assert len(kept.encode()) <= limit or not line
    assert bool(line) == (len(written.encode()) > limit)
    if line:
        assert len(kept.encode()) > limit - 4
        assert f"first {len(kept)}." in rest
    else:
        assert kept == written
