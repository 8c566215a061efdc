"""Formulas of the documentation, as MathML: nothing to load, no script to run.

GitHub's own notation, so that pages read the same there: ``$`x^2`$`` within a line, and a fence marked
``math`` for a formula of its own. LaTeX is translated by latex2mathml.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as etree
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

_INLINE = r"\$`([^`]+)`\$([.,;:?)]*)"  # with what must not begin the next line
_FENCE = re.compile(r"^(?P<indent> *)```math\n(?P<latex>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


def mathml(latex: str, display: str = "inline") -> str:
    """A formula as one ``math`` element; its LaTeX goes along as a label for readers that cannot draw it."""
    element = etree.fromstring(convert(" ".join(latex.split()), display=display))
    etree.register_namespace("", "http://www.w3.org/1998/Math/MathML")
    element.set("alttext", " ".join(latex.split()))
    return etree.tostring(element, encoding="unicode")


class _Blocks(Preprocessor):
    """Takes fences away before anything else looks for code."""

    def run(self, lines: list[str]) -> list[str]:
        def stored(found: re.Match[str]) -> str:
            formula = f'<div class="formula">{mathml(found["latex"], "block")}</div>'
            return f"\n{found['indent']}{self.md.htmlStash.store(formula)}\n"

        return _FENCE.sub(stored, "\n".join(lines)).split("\n")


class _Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Any, int, int]:  # type: ignore[override]
        formula = mathml(m[1])
        kept = f'<span class="together">{formula}{m[2]}</span>' if m[2] else formula
        return self.md.htmlStash.store(kept), m.start(0), m.end(0)


class MathExtension(Extension):
    """Formulas for Python-Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Blocks(md), "formula_blocks", 28)  # before fences of code (25)
        md.inlinePatterns.register(_Inline(_INLINE, md), "formulas", 195)  # before code (190)
