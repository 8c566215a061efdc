"""Reading the site file."""

from __future__ import annotations

from pathlib import Path

from planner.documents.site_schema import SiteDocument
from planner.documents.source import load_document


def load_site(path: str | Path | None) -> SiteDocument:
    """Settings of a site; without a file, none are given.

    Raises
    ------
    SpecError
        With every problem of the file.
    """
    return SiteDocument() if path is None else load_document(path, SiteDocument).model
