"""Features on a small device, with only onnxruntime and numpy: no torch, no scikit-learn.

Export the model where it was trained, with `polyadic.export.onnx(model, "model.onnx")` or `polyadic export`, copy the
file to the device, and install there

    pip install numpy onnxruntime && pip install --no-deps polyadic

    python examples/onnx_device.py model.onnx windows.npy
"""

from __future__ import annotations

import sys
import time

import numpy as np

from polyadic.export import Features


def main(model: str, windows: str | None = None) -> None:
    features = Features(model)
    rate = "unknown" if features.fs is None else f"{features.fs:g} Hz"
    print(f"{features}, sampling rate {rate}, written by polyadic {features.version}")

    # Without a file of windows, use noise to measure the time per window.
    X = (
        np.random.default_rng(0).normal(size=(8, *features.shape))
        if windows is None
        else np.load(windows)
    )

    # Process one window at a time, as on a device.
    begun = time.perf_counter()
    Z = np.stack([features(window) for window in X])
    print(
        f"{len(X)} windows, {Z.shape[1]} features, {1e3 * (time.perf_counter() - begun) / len(X):.2f} ms per window"
    )

    if features.classes:
        for number, row in enumerate(features.probabilities(X[:5]), start=1):
            print(
                f"window {number}: {features.classes[row.argmax()]} is most probable, {row.max():.0%}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
