"""`polyadic label`: label the windows that matter, in the browser."""

from __future__ import annotations

import getpass
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from polyadic._util.packages import import_package
from polyadic._util.terminal import echo, print_notes
from polyadic.cli.files import check_out_file
from polyadic.cli.label_files import check_label_file, check_label_texts, events_of, write_labels
from polyadic.cli.options import Common, Data, option, out_option, with_options
from polyadic.cli.windows import are_recordings, counted, naming_dead_channels, open_model, opened
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows
    from polyadic.label import Session

EXAMPLES = """
Label a folder of EDF files in windows of 30 s, in the browser; then a classifier from the labels:
  polyadic label recordings --seconds 30
  polyadic fit recordings --seconds 30 --labels labels.csv --probe

With features of a model that was fitted before:
  polyadic label recordings --seconds 30 --model model.safetensors

The labels as BIDS events, a file for each recording in the folder labels-events:
  polyadic label recordings --seconds 30 -o labels.csv --export tsv
"""

_LOCAL = "127.0.0.1"


@with_options("seed device quiet")
def label(
    common: Common,
    data: Data,
    out: Annotated[Path, out_option("The .csv file of labels; answers are appended to it.")] = Path("labels.csv"),
    model: Annotated[Path | None, option("Model to use. Default: fit one.", metavar="MODEL", exists=True)] = None,
    who: Annotated[str | None, option("Who labels, for the file. Default: your user name.", metavar="NAME")] = None,
    export: Annotated[
        Literal["tsv", "edf", "bdf"] | None,
        option("Instead, write the labels as tsv (BIDS events), or edf or bdf (annotated copies).", metavar="KIND"),
    ] = None,
    host: Annotated[str, option("Address to listen on. Default: this machine only.", metavar="ADDRESS")] = _LOCAL,
    port: Annotated[int, option("Port; 0 for any free one.", min=0, max=65535, metavar="N")] = 0,
    browser: Annotated[bool, option("Open the page in the browser.", "--browser/--no-browser")] = True,
) -> None:
    """Label windows in the browser: the program chooses which, and shows what the labels predict.

    A local server shows one window at a time. The first cover the data, later ones are those that predictions are
    unsure of, and every fifth is drawn at random to estimate the accuracy on new subjects. Every answer is on disk
    before the page says so; run the command again to continue. Ctrl-C ends it. The page has help (?).
    """
    from polyadic import CPD
    from polyadic._util.progress import stage_bar
    from polyadic.evaluate.probe import statistic_columns
    from polyadic.label import Journal, Session

    for package in ("starlette", "uvicorn"):
        import_package(package, "polyadic label")
    check_out_file(out, data, endings=(".csv",))
    loaded = None if model is None else open_model(model, common.device)
    with opened(data, common, model=loaded, labels=False) as windows:
        if export is not None:
            _export(out, data, windows, export)
            return
        journal = Journal(out)
        if loaded is None:
            loaded = CPD(device=common.device, random_state=common.seed, verbose=int(not common.quiet)).fit(windows)
        with naming_dead_channels(windows), stage_bar("features", common.quiet, "windows", len(windows)) as on_rows:
            Z = loaded.transform(windows, on_rows=on_rows)
        if who is None:
            with suppress(KeyError, OSError):  # a user without a name, as in some containers
                who = getpass.getuser()
        columns = statistic_columns(loaded)
        session = Session(windows, Z, journal, statistics=columns, who=who or "", random_state=common.seed)
        if len(journal.rows):
            echo(f"{out.name}: {counted(session.counts()['labelled'], 'label')} so far")
        _serve(session, host, port, browser)
    echo(f"{out.name}: {counted(session.counts()['labelled'], 'label')}")


def _serve(session: Session, host: str, port: int, browser: bool) -> None:
    """Serve the page until Ctrl-C."""
    import secrets
    import socket
    import threading
    import webbrowser

    import uvicorn

    from polyadic.label.server import build_app
    from polyadic.label.session import follow

    token = secrets.token_urlsafe(24)
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise PolyadicError(f"--host {host} --port {port}: cannot listen there: {error}") from error
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}/{token}/"
    if host != _LOCAL:
        print_notes(
            "Warning: other machines of the network can reach this address. Whoever has it sees the recordings and "
            "can label; it is not encrypted."
        )
    follow(session, lambda problem: echo(problem, err=True, colour="red"))
    app = build_app(session, token, (host.lower(),))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, server_header=False))
    echo(f"Label at {address}")
    echo(f"Ctrl-C ends. Every answer is saved at once in {session.journal.path}.")
    if browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        session.journal.close()


def _export(out: Path, data: Path, windows: Windows, kind: str) -> None:
    """Write the labels of each recording as BIDS events, or as an annotated copy."""
    from polyadic.data.loading import FolderReader
    from polyadic.data.reading import Reading
    from polyadic.evaluate import labels_of
    from polyadic.label import apply_labels

    if not are_recordings(data):
        raise PolyadicError(f"--export writes beside recordings, but {data.name} holds windows: pass the recordings")
    labelled, note = apply_labels(out, windows)
    print_notes(note)
    folder = out.with_name(f"{out.stem}-events")
    folder.mkdir(exist_ok=True)
    reader = FolderReader(data, Reading(), labels=False)
    files = {reader.name_of(path): path for path in reader.files}
    known = labelled[labelled.label >= 0]
    for name in sorted(set(known.recording.tolist())):
        own = known.select(recording=name)
        found = events_of(own, own.fs, labels_of(own)).sort_values("onset")
        if name not in files and not data.is_file():
            raise PolyadicError(f"--export: recording {name!r} has no file of its own in {data}")
        source = data if data.is_file() else files[name]
        target = folder / f"{Path(name.replace('/', '_')).stem}_events.{kind}"
        if kind != "tsv":
            check_label_file(target, source)
        check_label_texts(target, found["trial_type"])
        write_labels(target, source, found, labelled.classes)
        echo(f"{target}: {counted(len(found), 'label')}")
