"""Broken configurations give a shape or an error with its reasons, soon; never a traceback."""

import json
import random
import time

import pytest
from config_mutations import VALID, mutated

from planner.documents.model_config import parse_model_config
from planner.errors import SpecError
from planner.specs import Dtype
from planner.transformer import kv_bytes_per_sequence, kv_bytes_per_token, parameters

BATCHES, SIZE = 10, 400


def test_the_starting_points_are_valid():
    for config in VALID:
        assert parameters(parse_model_config(json.dumps(config), "config.json", "m")) > 0


def _is_refused(text: str) -> bool:
    """Whether a configuration is refused with reasons that can be printed; any other shape is whole."""
    try:
        model = parse_model_config(text, "config.json", "m")
    except SpecError as error:
        return bool(error.problems) and bool(str(error).encode("utf-8"))
    assert parameters(model) > 0
    assert kv_bytes_per_token(model, Dtype.BF16) >= 0
    assert kv_bytes_per_sequence(model, Dtype.BF16) >= 0
    return False


@pytest.mark.parametrize("batch", range(BATCHES))
def test_mutated_configurations(batch):
    refused = slowest = 0.0
    for seed in range(batch * SIZE, (batch + 1) * SIZE):
        text = mutated(random.Random(seed))
        begin = time.perf_counter()
        refused += _is_refused(text)
        slowest = max(slowest, time.perf_counter() - begin)
    assert slowest < 1
    assert 0.5 < refused / SIZE < 1
