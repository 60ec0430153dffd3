"""`polyadic compare`: compare groups of subjects, or conditions of the same subjects, by expression in dB."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polyadic._util.files import write_json
from polyadic._util.packages import import_package
from polyadic._util.terminal import echo
from polyadic.cli.files import check_out_file
from polyadic.cli.fit import found_components
from polyadic.cli.options import Common, Data, option, out_option, with_options
from polyadic.cli.windows import open_model, opened
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows

EXAMPLES = """
Patients and controls, by the column group of participants.tsv, in sleep stage N2, adjusted for age:
  polyadic compare my.store --by group --within N2 --covariate age

Two conditions of each subject, by a pattern in the file names; result as JSON:
  polyadic compare my.store --by '_(rest|task)' --paired -o compare.json

With components of a model, and conditions from the two classes of the windows:
  polyadic compare my.store --by label --paired --model model.safetensors
"""


@with_options("labels seed force json quiet")
def compare(
    common: Common,
    data: Data,
    by: Annotated[
        str,
        option(
            "A column of participants.tsv or --table; label, for the labels of windows; or a regular expression with a "
            "group, for the names of recordings.",
            metavar="NAME",
        ),
    ],
    model: Annotated[Path | None, option("Model with the components. Default: find them here.", metavar="FILE")] = None,
    table: Annotated[
        Path | None, option("Table (.csv, .tsv); first column: subject.", metavar="FILE", exists=True)
    ] = None,
    within: Annotated[str | None, option("Only windows with this label, such as N2.", metavar="LABEL")] = None,
    paired: Annotated[bool, option("Compare two conditions within the subjects that have both.", "--paired")] = False,
    covariate: Annotated[list[str] | None, option("Numeric column to adjust for; repeatable.", metavar="NAME")] = None,
    out: Annotated[Path | None, out_option("Also write the result as .json, or a report as .html.")] = None,
    permutations: Annotated[int, option("Number of permutations.", min=1, metavar="N")] = 10_000,
) -> None:
    """Compare groups of subjects, or two conditions of each subject.

    Shows the level (how loud windows are) and the expression of each component relative to it, in dB. Each subject
    counts once. Subjects are permuted, and p values are corrected for all rows of the table. With fewer than 5 subjects
    in a group there are effect sizes only. If no component replicates, the level alone is compared.
    """
    from polyadic import CPD, explain, report
    from polyadic._util.provenance import provenance

    if out is not None:
        check_out_file(out, model, data, table, endings=(".json", ".html"), force=common.force)
        if out.suffix == ".html":
            import_package("plotly", "a report")
    loaded = None if model is None else open_model(model)
    people = _read_people(data, table)
    with opened(data, common, model=loaded, labels=None) as windows:
        chosen = windows
        if within is not None:
            name = within.rpartition("=")[2]
            if name not in windows.classes:
                labels = ", ".join(windows.classes) or "(none)"
                raise PolyadicError(f"--within {within!r} must be one of the labels {labels}")
            chosen = windows[windows.label == windows.classes.index(name)]
        group = _groups(chosen, by, people)
        columns = {name: _numbers(name, _column(chosen, name, people)) for name in covariate or ()}
        if loaded is None:
            loaded = CPD(random_state=common.seed)
            collected = loaded.fit_with_moments(windows, windows.subject)
            loaded.components_ = found_components(collected, common.seed, common.hidden)
        if not common.json and hasattr(loaded, "components_"):
            only = "; only the level is compared" if loaded.components_.model is None else ""
            echo(f"{loaded.components_!r}{only}")
        settings: dict[str, Any] = {"paired": paired, "permutations": permutations, "random_state": common.seed}
        result = explain.compare(loaded, chosen, group, covariates=columns or None, **settings)
        if out is not None and out.suffix == ".html":
            about: dict[str, Any] = {"title": f"{data.name}: {' and '.join(result.groups)}", "comparison": result}
            report.write(out, loaded, chosen, **about, random_state=common.seed, transductive=True)
    content = {**result.to_dict(), "by": by, "within": within, **provenance("cpu")}
    if out is not None and out.suffix == ".json":
        write_json(out, content)
    common.tell(content, shown=repr(result).splitlines())


def _read_people(data: Path, table: Path | None) -> dict[str, dict[str, str]]:
    """Return the row of each subject in a table, or in the participants.tsv of a folder."""
    from polyadic.data.folders import read_participants
    from polyadic.data.readers.tables import read_texts

    if table is None:
        return read_participants(data) if data.is_dir() else {}
    frame = read_texts(table)
    if not frame.iloc[:, 0].is_unique:
        raise DataError(f"{table.name} must have one row per subject, but {frame.columns[0]!r} has values twice")
    return {row[frame.columns[0]]: row for row in frame.to_dict("records")}


def _groups(windows: Windows, by: str, people: dict[str, dict[str, str]]) -> list[str]:
    """Return the group of each window, "" if it has none."""
    is_column = any(by in row for row in people.values())
    if by == "label" and not is_column:
        return [windows.classes[code] if code >= 0 else "" for code in windows.label.tolist()]
    if "(" not in by or is_column:
        return _column(windows, by, people)
    try:
        pattern = re.compile(by)
    except re.error as error:
        raise PolyadicError(f"--by {by!r} is not a regular expression: {error}") from error
    found = {name: pattern.search(name) for name in set(windows.recording.tolist())}
    if not any(found.values()):
        raise PolyadicError(f"--by {by!r} matches no recording, such as {next(iter(found))!r}")
    groups = {name: match[1] or "" if match and pattern.groups else "" for name, match in found.items()}
    return [groups[name] for name in windows.recording.tolist()]


def _column(windows: Windows, name: str, people: dict[str, dict[str, str]]) -> list[str]:
    """Return the value of a column for the subject of each window, "" if it is not known."""
    known = sorted({column for row in people.values() for column in row})
    if name not in known:
        have = f"the columns are {', '.join(known)}" if known else "there is no participants.tsv and no --table"
        raise PolyadicError(f"{name!r} is not a column of a table of subjects ({have}), nor label, nor a pattern")
    subjects = windows.subject.tolist()
    rows = {subject: people.get(subject) or people.get(f"sub-{subject}") or {} for subject in set(subjects)}
    if not any(rows.values()):
        raise PolyadicError(
            f"the table describes no subject of these windows: it has {next(iter(people))!r}, the windows "
            f"{subjects[0]!r} (set subjects with --subject)"
        )
    values = {subject: row.get(name, "") for subject, row in rows.items()}
    return ["" if values[subject].lower() in ("n/a", "nan") else values[subject] for subject in subjects]


def _numbers(name: str, values: list[str]) -> list[float]:
    try:
        return [float(value or "nan") for value in values]
    except ValueError as error:
        raise PolyadicError(f"--covariate {name} must be a column of numbers: {error}") from error
