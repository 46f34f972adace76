"""Which coding an answer has."""

from __future__ import annotations

import gzip

import brotli
import pytest

from app.page_files import Asset, Coding, chosen


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("", Coding.IDENTITY),
        ("gzip, deflate, br, zstd", Coding.BROTLI),
        ("gzip, deflate", Coding.GZIP),
        ("GZIP;Q=0.5", Coding.GZIP),
        ("br;q=0, gzip", Coding.GZIP),
        ("gzip;q=0.0, br; q=0", Coding.IDENTITY),
        (", ;q=1,", Coding.IDENTITY),
    ],
)
def test_the_coding_is_the_smallest_that_is_accepted(accepted: str, coding: Coding) -> None:
    assert chosen(accepted) is coding


def test_each_coding_says_the_same_under_a_tag_of_its_own() -> None:
    content = b"say it again. " * 100
    asset = Asset("a.js", content)
    assert brotli.decompress(asset.coded(Coding.BROTLI)) == content
    assert gzip.decompress(asset.coded(Coding.GZIP)) == content
    assert len({asset.tag(coding) for coding in Coding}) == 3


def test_gzip_says_nothing_of_when_it_was_made() -> None:
    """The same tag has to stand for the same bytes."""
    assert Asset("a.js", b"a" * 999).coded(Coding.GZIP) == Asset("b.js", b"a" * 999).coded(Coding.GZIP)


@pytest.mark.parametrize("asset", [Asset("a.png", b"a" * 999), Asset("a.js", b"short")])
def test_pictures_and_what_fits_a_packet_are_sent_as_they_are(asset: Asset) -> None:
    assert not asset.varies
