"""Readers of file formats, one module each; every one gives `polyadic.data.recordings.Recording`s."""
