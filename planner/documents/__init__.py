"""File formats: one module per kind of file. The only place, with the CLI, that converts units.

Below them, from text to a validated schema: :mod:`~planner.documents.files` (bytes in and out),
:mod:`~planner.documents.yaml_text` (text into a :mod:`~planner.documents.tree` with lines, and back),
:mod:`~planner.documents.schema_base` (what schemas are made of), :mod:`~planner.documents.messages`
(what is said of their errors) and :mod:`~planner.documents.source` (all of it in one call).
"""
