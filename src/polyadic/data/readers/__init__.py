"""Readers of file formats, one module per format. They return `Recording` or `Windows` objects."""
