"""The tools of operators: the status of limits, holders and parked tasks, and changes of limits at run time."""
