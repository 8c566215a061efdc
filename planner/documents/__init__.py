"""File formats: one module per kind of file. The only place, with the CLI, that converts units."""
