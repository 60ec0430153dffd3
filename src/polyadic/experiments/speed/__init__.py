"""All timing: stages, scaling, comparisons, races."""
