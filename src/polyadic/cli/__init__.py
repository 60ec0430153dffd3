"""The command line. Commands import heavy modules themselves, so that --help is fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyadic.cli.commands import app

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    # Signal handlers are installed before any slow import.
    if name == "app":
        from polyadic.cli.commands import app

        return app
    raise AttributeError(f"module 'polyadic.cli' has no attribute {name!r}")


def main() -> None:
    """Run the `polyadic` program."""
    from polyadic.cli.exits import exit_on_error, exit_on_interrupt, handle_signals, plain_warnings

    handle_signals(main.__code__)
    with exit_on_interrupt():
        from polyadic._util.memory import reuse_memory
        from polyadic._util.terminal import robust_streams

        reuse_memory()
        with robust_streams(), exit_on_error(), plain_warnings():
            from polyadic.cli.commands import app

            app(prog_name="polyadic")
