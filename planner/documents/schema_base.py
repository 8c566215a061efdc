"""What the schemas of all files are made of: their base class and common kinds of fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from planner.documents.names import did_you_mean, either, one_of
from planner.documents.tree import Tree
from planner.errors import Problem
from planner.units import MEGA

Fraction = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Money = Annotated[float, Field(ge=0, le=MEGA)]
PositiveInt = Annotated[int, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]


class DocumentModel(BaseModel):
    """Base of every schema of a file: no unknown keys, no silent conversion, no infinities."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    synonyms: ClassVar[Mapping[str, str]] = {}
    """Keys that people know from elsewhere, and what they are called here, or a sentence about it."""

    empty_values: ClassVar[bool] = True
    """Whether a key may be left without a value. Read from the schema of the whole file."""

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        """Rules that span several keys. Runs on the raw tree, also when a field is wrong."""
        return []


@dataclass(frozen=True, slots=True)
class Reserved:
    """Marks a key, or a choice, that the schema knows and this version refuses."""

    rule: str = "is reserved and not supported by this version"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def refuse(value: Any) -> Any:
            raise PydanticCustomError("reserved", "{rule}", {"rule": self.rule})

        return core_schema.no_info_plain_validator_function(refuse)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"not": {}, "description": f"Refused: {self.rule}."}


@dataclass(frozen=True, slots=True)
class Choice:
    """Makes a text field one of `known`; others are refused with the nearest.

    `aliases` are other spellings of known ones, `reserved` those that this version refuses.
    """

    known: tuple[str, ...]
    reserved: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._choose)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "enum": [*self.known, *self.aliases]}

    def _choose(self, value: Any) -> str:
        name = self.aliases.get(value, value) if isinstance(value, str) else None
        if name in self.known:
            return str(name)
        if name in self.reserved:
            raise rule_error("is not supported by this version", f"choose {either(self.known)}")
        hint = did_you_mean(str(name), [*self.known, *self.aliases]) if name else ""
        raise rule_error(one_of(self.known), hint)


def rule_error(rule: str, suggestion: str = "") -> PydanticCustomError:
    """What a validator of a schema raises: `rule` and `suggestion` reach the user as they are."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "suggestion": suggestion})


def kind_of(value: Any) -> str:
    """Tag of a value that may be short or a mapping; parentheses keep it out of messages."""
    return "(mapping)" if isinstance(value, dict) else "(short)"


def refused(kinds: tuple[type, ...], rule: str, suggestion: str) -> BeforeValidator:
    """Refuses values of some Python types with a rule of its own."""

    def check(value: Any) -> Any:
        if isinstance(value, kinds) and not isinstance(value, bool):
            raise rule_error(rule, suggestion)
        return value

    return BeforeValidator(check)


MAX_LABEL = 63
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"


def label_of(text: str) -> str:
    """The nearest name that may stand in host names: small letters, digits, dashes; empty if none is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:MAX_LABEL].rstrip("-")


def _check_label(text: str) -> str:
    if not re.fullmatch(_LABEL, text) or len(text) > MAX_LABEL:
        near = label_of(text)
        rule = f"must be up to {MAX_LABEL} small letters, digits and dashes, as in a host name"
        raise rule_error(rule, f"e.g. {near}" if near else "")
    return text


Label = Annotated[
    str,
    AfterValidator(_check_label),
    Field(json_schema_extra={"pattern": f"^{_LABEL}$", "maxLength": MAX_LABEL}),
]
"""A name that may become part of a host name."""
