"""Tells how far transformers has come with reading weights, through its hook for progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging

_WEIGHTS = "Loading weights"


class _ReportingBar:
    """A progress bar of transformers that also tells the share of its items that are done."""

    def __init__(self, bar: Any, total: int, report: Callable[[float], None]) -> None:
        self._bar = bar
        self._total = total
        self._report = report

    def __iter__(self) -> Iterator[Any]:
        for done, item in enumerate(self._bar, start=1):
            yield item
            self._report(done / self._total)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bar, name)


@contextmanager
def weights_progress(report: Callable[[float], None]) -> Iterator[None]:
    """Call `report` with a share from 0 to 1 for each weight that is read inside the block."""

    def hook(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bar = factory(*args, **kwargs)
        if kwargs.get("desc") != _WEIGHTS or not args:
            return bar
        return _ReportingBar(bar, max(1, len(args[0])), report)

    untyped: Any = transformers_logging
    previous = untyped.set_tqdm_hook(hook)
    try:
        yield
    finally:
        untyped.set_tqdm_hook(previous)
