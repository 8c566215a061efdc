"""Operators timed on the device at hand, with torch: the only place that imports it."""
