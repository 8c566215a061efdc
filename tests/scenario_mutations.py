"""Seeded ways to break a scenario."""

from __future__ import annotations

import random
from typing import Any


def mutated_lines(text: str, rng: random.Random) -> str:
    """The text with one to four changes to its lines."""
    lines = text.splitlines()
    words = ["", "no", "-1", "0", "1e3", "1e999", ".nan", "[]", "{}", "null", "'x'", "12:30", "*a", "&a x"]
    words += [
        "{p50: 3, p90: 1}",
        "[[1, 2], [3]]",
        "9" * 400,
        "\t",
        ":",
        "- -",
        "!!binary x",
        "<<",
        "\x07",
        "é",
    ]
    for _ in range(rng.randint(1, 4)):
        i = rng.randrange(len(lines))
        action = rng.randrange(6)
        if action == 0:
            del lines[i]
        elif action == 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[i])
        elif action == 2:
            lines[i] = lines[i].partition(":")[0] + ": " + rng.choice(words)
        elif action == 3:
            lines[i] = " " * rng.randrange(5) + lines[i].lstrip()
        elif action == 4:
            at = rng.randrange(len(lines[i]) + 1)
            lines[i] = lines[i][:at] + rng.choice(words) + lines[i][at + rng.randrange(4) :]
        else:
            tokens = lines[i].split(" ")
            tokens[rng.randrange(len(tokens))] = rng.choice(words)
            lines[i] = " ".join(tokens)
        if not lines:
            break
    return "\n".join(lines)


def mutated_value(value: Any, rng: random.Random) -> Any:
    """The document with one random part replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {k: mutated_value(v, rng) if k == key else v for k, v in value.items()}
    if isinstance(value, list) and value and rng.random() < 0.8:
        i = rng.randrange(len(value))
        return [mutated_value(v, rng) if k == i else v for k, v in enumerate(value)]
    return rng.choice([None, True, -1, 0, 0.5, 7, 10**30, "x", "", "a/b", [], {}, [1], {"p50": 1}, [[1, 2]]])
