"""Build the package, check it, install it into a clean environment and use it there, as a new user would.

`make package` runs this script. It needs only Python and a package index. Versions are pinned by requirements.lock, so
that torch is the same build as in the tests.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

from environments import ROOT, environment, install, run, say

TOOLS = ("build==1.6.1", "twine==7.0.0")
LARGEST = 2_000_000
"""Maximum size of an archive in bytes."""
UNWANTED = re.compile(
    r"__pycache__|\.py[co]$|(^|/)\.(?!gitignore)|_build/|/(tests|docs|paper|examples)/|\.safetensors$"
)

PLAIN = """
import importlib.metadata, importlib.util, sys
import polyadic
assert polyadic.__version__ == importlib.metadata.version("polyadic"), polyadic.__version__
assert "site-packages" in polyadic.__file__, polyadic.__file__
extras = "edfio h5py kaleido matplotlib mne onnx plotly pyriemann tensorly wfdb".split()
assert not [name for name in extras if importlib.util.find_spec(name)], "the environment is not clean"
import pathlib
import numpy as np
from polyadic import ATD, load
from polyadic.errors import MissingExtraError
X = np.random.default_rng(0).normal(size=(60, 3, 128)).astype(np.float32)
model = ATD(rank=4).fit(X)
model.save("model.safetensors")
np.testing.assert_array_equal(load("model.safetensors").transform(X), model.transform(X))
from polyadic import plot
try:
    plot.components(model)
except MissingExtraError as error:
    assert "polyadic[report]" in str(error), error
else:
    raise AssertionError("a plot without plotly did not raise MissingExtraError")
"""

EXAMPLE = """
import sys
from plotly.basedatatypes import BaseFigure
shown = []
BaseFigure.show = lambda figure, *_, **__: shown.append(figure.to_html())  # no browser here
for code in sys.argv[1:]:
    print(code)
    exec(compile(code, "README.md", "exec"), globals())
assert shown, "the example in the README shows no figure"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep the archives in this folder")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="polyadic-package-") as name:
        folder = Path(name)
        archives = build(folder, words.out or folder / "dist")
        for archive in archives:
            check_contents(archive)
        use(folder, next(archive for archive in archives if archive.suffix == ".whl"))
    say("the package builds, installs and runs")


def build(folder: Path, out: Path) -> list[Path]:
    """Build the source archive, and the wheel from it."""
    say("build")
    python = environment(folder / "tools")
    install(python, *TOOLS, "--constraint", ROOT / "requirements.lock")
    run(python, "-m", "build", "--outdir", out, ROOT, quiet=True)
    found = re.search(r'__version__ = "(.+)"', (ROOT / "src/polyadic/_util/version.py").read_text("utf-8"))
    assert found is not None
    archives = [out / f"polyadic-{found[1]}.tar.gz", out / f"polyadic-{found[1]}-py3-none-any.whl"]
    run(python, "-m", "twine", "check", "--strict", *archives)
    return archives


def check_contents(archive: Path) -> None:
    """Exit if an archive has unwanted files, lacks required ones, or is too large."""
    if archive.suffix == ".whl":
        names = zipfile.ZipFile(archive).namelist()
        wanted = {path.relative_to(ROOT / "src").as_posix() for path in tracked("src/polyadic")}
    else:
        with tarfile.open(archive) as opened:
            names = [name.partition("/")[2] for name in opened.getnames()]
        wanted = {path.relative_to(ROOT).as_posix() for path in tracked("src/polyadic")}
        wanted |= {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    missing, unwanted = sorted(wanted - set(names)), [name for name in names if UNWANTED.search(name)]
    size = archive.stat().st_size
    say(f"{archive.name}: {len(names)} files, {size / 1000:,.0f} kB")
    if missing or unwanted or size > LARGEST:
        raise SystemExit(f"{archive.name}: missing {missing}, unwanted {unwanted}, {size:,} of {LARGEST:,} bytes")


def tracked(folder: str) -> list[Path]:
    """Return the files of a folder that are tracked by git."""
    listed = subprocess.run(["git", "ls-files", "-z", folder], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def use(folder: Path, wheel: Path) -> None:
    """Install the wheel, without extras and then with plots, and run the README's example and the commands."""
    say("install without extras")
    python, work = environment(folder / "clean"), folder / "work"
    work.mkdir()
    pins = ("--constraint", ROOT / "requirements.lock")
    install(python, wheel, *pins)
    run(python, "-m", "pip", "check")
    run(python, "-W", "error", "-c", PLAIN, cwd=work)
    polyadic = python.with_name("polyadic")
    run(polyadic, "--version", cwd=work)
    run(polyadic, "--help", cwd=work, quiet=True)
    run(polyadic, "run", "--rank", "4", "--out", "plain", cwd=work, quiet=True)
    say("install with plots")
    install(python, f"polyadic[report] @ {wheel.resolve().as_uri()}", *pins)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    if not blocks:
        raise SystemExit("README.md has no Python code block")
    run(python, "-c", EXAMPLE, *blocks, cwd=work)
    run(polyadic, "run", "--rank", "4", "--out", "run", cwd=work)
    for name in ("plain/results.json", "run/results.json", "run/report.html"):
        if not (work / name).stat().st_size:
            raise SystemExit(f"polyadic run wrote an empty {name}")


if __name__ == "__main__":
    main()
