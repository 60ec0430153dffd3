"""Accuracy on unseen subjects against labels per class: `python -m paper labels`."""
