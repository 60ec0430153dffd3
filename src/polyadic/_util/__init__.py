"""Helpers without knowledge of the method: files, checks, progress, terminal, random streams."""
