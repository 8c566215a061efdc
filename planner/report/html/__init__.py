"""A plan as one HTML file: facts -> sections -> page."""
