"""Predictions for published values in long format: one number, or one reason, for every row."""

from planner.validation.published.hosts import FittedHost
from planner.validation.published.predict import (
    PublishedPredictions,
    errors_by_group,
    predict_published,
    steady_rows,
)

__all__ = ["FittedHost", "PublishedPredictions", "errors_by_group", "predict_published", "steady_rows"]
