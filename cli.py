"""``python cli.py`` from a checkout: the same program as ``planner`` and ``python -m planner``."""

from planner.cli import main

if __name__ == "__main__":
    main(prog_name="planner")
