"""A fleet under traffic, one engine step after the other."""
