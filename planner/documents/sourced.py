"""A figure together with where it comes from: what data files hold instead of bare numbers."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import Field

from planner.documents.schema_base import DocumentModel, Text

T = TypeVar("T")


class Sourced(DocumentModel, Generic[T]):
    """A value and its origin."""

    value: T = Field(description="The figure itself, in the unit that the key names.")
    source: Text = Field(description="Where it comes from: a key of the file's sources, or a sentence.")
    unverified: bool = Field(default=False, description="True where the source could not be read again.")
    note: str = Field(default="", description="What a reader has to know to use the figure.")
