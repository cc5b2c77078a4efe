"""One browser for all tests that look at a page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.browser import Page, browsing


@pytest.fixture(scope="session")
def browser() -> Iterator[Page]:
    with browsing() as page:
        yield page
