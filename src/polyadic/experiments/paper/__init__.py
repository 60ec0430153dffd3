"""Experiments that reproduce every table and figure of the paper: `polyadic bench`."""
