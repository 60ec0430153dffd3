"""Code that runs while the documentation is built: the directive `run`, and a page for every script in `examples/`.

The output of a block appears below it: printed text, plotly figures, saved pictures. The blocks of a page run in order,
in one namespace and one temporary folder. A block that fails causes a warning, and therefore stops the build. Figures
are drawn by plotly's script, which is copied next to the pages, so they need no network.

Pages are plain Markdown, so that they also read well in the repository. The build translates them: a Python block
below `<!-- run -->` becomes a `run` directive, the content of a comment `<!-- sphinx … -->` becomes part of the page,
links to `examples/NAME.py` become links to the gallery, and links to files outside `docs` become file names.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import html
import io
import itertools
import os
import re
import tempfile
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from threadpoolctl import threadpool_limits

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}
_numbers = itertools.count()


@contextlib.contextmanager
def kept_figures() -> Iterator[list[Any]]:
    """Collect plotly figures in a list instead of showing them in a browser."""
    from plotly.basedatatypes import BaseFigure

    kept: list[Any] = []
    plain = BaseFigure.show
    BaseFigure.show = lambda figure, *_, **__: kept.append(figure)
    try:
        yield kept
    finally:
        BaseFigure.show = plain


def execute(code: str, names: dict[str, Any], name: str) -> tuple[str, list[Any], list[Path]]:
    """Run a block in the current folder, and return its printed text, shown figures and saved pictures."""
    before = {path: path.stat().st_mtime_ns for path in Path.cwd().iterdir()}
    torch.set_num_threads(1)  # blocks are small, so synchronising threads would slow them down
    with contextlib.redirect_stdout(io.StringIO()) as printed, kept_figures() as figures, threadpool_limits(1):
        exec(compile(ast.parse(code, name), name, "exec"), names)  # noqa: S102 (our own pages and examples)
    saved = [path for path in sorted(Path.cwd().iterdir()) if path.suffix in PICTURES]
    return printed.getvalue(), figures, [path for path in saved if before.get(path) != path.stat().st_mtime_ns]


class Run(SphinxDirective):
    """A block of Python and its output; `:hide:` leaves out the code."""

    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"hide": directives.flag, "alt": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        code = "\n".join(self.content)
        shown: list[nodes.Node] = [] if "hide" in self.options else [nodes.literal_block(code, code, language="python")]
        page = self.env.temp_data.setdefault("executed", {"names": {"__name__": "__main__"}, "folder": _folder()})
        here = Path.cwd()
        try:
            os.chdir(page["folder"].name)
            text, figures, pictures = execute(code, page["names"], f"{self.env.docname}:{self.lineno}")
            found = [_figure(figure) for figure in figures] + [self._picture(path) for path in pictures]
        except Exception:
            reason = textwrap.indent(traceback.format_exc(limit=-3), "    ")
            return [*shown, self.state.document.reporter.warning(f"this block failed:\n{reason}", line=self.lineno)]
        finally:
            os.chdir(here)
        printed = [nodes.literal_block(text, text, language="text", classes=["printed"])] if text.strip() else []
        return shown + printed + [nodes.raw("", markup, format="html") for markup in found]

    def _picture(self, path: Path) -> str:
        data = base64.b64encode(path.read_bytes()).decode()
        alt = html.escape(self.options.get("alt", "The picture that this code saves"))
        return f'<img class="picture" alt="{alt}" src="data:{PICTURES[path.suffix]};base64,{data}">'


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="polyadic-docs-", ignore_cleanup_errors=True)


def _figure(figure: Any) -> str:
    """Return the HTML of a figure as data, which figures.js draws."""
    number, height = next(_numbers), figure.layout.height or 400
    data = figure.to_json().replace("</", "<\\/")
    return (
        f'<div class="figure" id="figure-{number}" style="height:{height}px"></div>'
        f'<script type="application/json" data-figure="figure-{number}">{data}</script>'
    )


# ------------------------------------------------------------------------------------------------------ the gallery


def cells(source: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the docstring of a script, and its cells: text (the comment after `# %%`) and code."""
    tree = ast.parse(source)
    about = ast.get_docstring(tree)
    assert about is not None, "an example begins with a docstring"
    rest = "\n".join(source.splitlines()[tree.body[0].end_lineno :])
    found = []
    for cell in re.split(r"^# %%.*\n", rest, flags=re.MULTILINE):
        comment = re.match(r"(?:#.*\n)*", cell)
        assert comment is not None
        text = re.sub(r"^# ?", "", comment[0], flags=re.MULTILINE)
        found.append((text.strip(), cell[comment.end() :].strip()))
    return about, [(text, code) for text, code in found if text or code]


def page(script: Path) -> str:
    """Return a page of the gallery, in Markdown."""
    about, found = cells(script.read_text(encoding="utf-8"))
    title, _, introduction = about.partition("\n")
    parts = [f"# {title.strip().rstrip('.')}", introduction.strip()]
    for text, code in found:
        parts += [text, f"```{{run}}\n{code}\n```" if code else ""]
    parts.append(
        f"This page is the script `examples/{script.name}` of the source tree, run when these pages were built."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def card(script: Path) -> str:
    about, _ = cells(script.read_text(encoding="utf-8"))
    title, _, rest = about.partition("\n")
    said = " ".join(rest.strip().split("\n\n")[0].split())
    picture = HERE / "_static" / "gallery" / f"{script.stem}.png"
    image = f'<img alt="" loading="lazy" src="../_static/gallery/{picture.name}">' if picture.exists() else ""
    name, said = html.escape(title.strip().rstrip(".")), html.escape(said).replace("`", "")
    return f'<a class="card" href="{script.stem}.html">{image}<b>{name}</b><span>{said}</span></a>'


def write_gallery(app: Sphinx) -> None:
    """Write a page for each example, and an index page; unchanged files are not rewritten."""
    scripts = [EXAMPLES / f"{name}.py" for name in app.config.gallery]
    listed = "\n".join(script.stem for script in scripts)
    index = (
        "# Gallery\n\nShort programs that generate their own data, so that you can run and change them. Each takes a "
        "few seconds on one core. They illustrate the library; the evidence is in "
        "[the results](../results/README.md).\n\n"
        f'<div class="gallery">\n{"".join(card(script) for script in scripts)}\n</div>\n\n'
        f"```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
    )
    wanted = {"index": index} | {script.stem: page(script) for script in scripts}
    folder = HERE / "gallery"
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.md"):
        if path.stem not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


# ------------------------------------------------------------------------------- plain Markdown, as in the repository


def translate(text: str, docname: str, gallery: list[str]) -> str:
    """Translate the source of a page for the build; the number of lines stays the same."""
    text = re.sub(r"^<!-- sphinx\n(.*?)^-->$", r"\n\1", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^<!-- run -->\n```python$", "\n```{run}", text, flags=re.MULTILINE)
    up = "../" * docname.count("/")
    outside = rf"\[[^\]]*\]\((?:{re.escape(up)}\.\./)([A-Z]+\.md)\)"  # files such as CONTRIBUTING.md are not pages
    text = re.sub(outside, r"`\1`", text)
    text = re.sub(r"\]\((?:\.\./)+examples\)", f"]({up}gallery/index.md)", text)
    for name in gallery:
        text = re.sub(rf"\]\((?:\.\./)+examples/{name}\.py\)", f"]({up}gallery/{name}.md)", text)
    return text


def translate_source(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = translate(source[0], docname, app.config.gallery)


# ------------------------------------------------------------------------------------------ scripts, and formulas


def add_scripts(app: Sphinx, _page: str, _template: str, _context: dict[str, Any], doctree: Any) -> None:
    """Load plotly (4 MB) on pages with figures only."""
    if doctree is not None and any('data-figure="' in node.astext() for node in doctree.findall(nodes.raw)):
        app.add_js_file("plotly.min.js", loading_method="defer")
        app.add_js_file("figures.js", loading_method="defer")


def copy_plotly(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        from plotly.offline import get_plotlyjs

        (Path(app.outdir) / "_static" / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")


def visit_formula(self: Any, node: nodes.math) -> None:
    """Write a formula as MathML, which browsers render without a script or network."""
    self.body.append(str(latex2mathml.tex2mathml(node.astext())))
    raise nodes.SkipNode


def visit_formula_block(self: Any, node: nodes.math_block) -> None:
    self.body.append('<div class="formula">')
    self.body.append(str(latex2mathml.tex2mathml(node.astext(), as_block=True)))
    self.body.append("</div>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("gallery", [], "env")
    app.add_directive("run", Run)
    app.add_html_math_renderer("mathml", (visit_formula, None), (visit_formula_block, None))
    app.connect("builder-inited", write_gallery)
    app.connect("source-read", translate_source)
    app.connect("html-page-context", add_scripts)
    app.connect("build-finished", copy_plotly)
    return {"parallel_read_safe": True, "version": "1"}
