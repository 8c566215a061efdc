"""A plan for people: terminal, and later HTML and plots."""
