"""Plans over several periods and streams."""
