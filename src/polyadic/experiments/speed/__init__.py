"""All timing: stages, scaling, comparisons, and accuracy against seconds."""
