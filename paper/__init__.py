"""The reproduction of the paper: its data sets, baselines, tables and figures, label curves and timings.

python -m paper --help
"""
