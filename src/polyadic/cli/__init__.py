"""The command line. Everything heavy is imported by the command that needs it, so that help comes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyadic.cli.commands import app

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    # Signals are handled before anything is imported that takes time.
    if name == "app":
        from polyadic.cli.commands import app

        return app
    raise AttributeError(f"module 'polyadic.cli' has no attribute {name!r}")


def main() -> None:
    """Run the `polyadic` program; its exit codes are those of the manual."""
    from polyadic.cli.interrupts import exit_on_interrupt, handle_signals

    handle_signals(main.__code__)
    with exit_on_interrupt():
        from polyadic.cli.errors import exit_on_error, plain_warnings
        from polyadic.memory import reuse_memory
        from polyadic.terminal import robust_streams

        reuse_memory()

        with robust_streams(), exit_on_error(), plain_warnings():
            from polyadic.cli.commands import app

            app(prog_name="polyadic")
