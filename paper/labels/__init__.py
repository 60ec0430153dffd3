"""Accuracy on unseen subjects against labels per class: `polyadic bench labels`."""
