"""Coefficients of a GPU from measured times of its operators."""
