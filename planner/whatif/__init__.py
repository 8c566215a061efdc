"""What if: re-solves of a changed scenario, and what follows from them.

changes -> resolve -> explain, robustness, pareto; compare and money read plans

Every figure comes from solving the changed scenario, never from a dual; the plans are found by prediction
alone, without simulation. :mod:`planner.whatif.resolve` is the only module here that calls the search.
"""
