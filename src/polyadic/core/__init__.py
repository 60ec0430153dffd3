"""The mathematics of the paper: algebra, the alternating least squares step, and the solver."""
