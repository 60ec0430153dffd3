"""What ATD is compared with, on the same windows, frames and augmentations."""
