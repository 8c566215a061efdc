"""Predictions against measurements: files of measured rows, what is predicted for them, and how far off."""
