"""Accuracy against labels per class on people nobody has seen: `polyadic bench labels`."""
