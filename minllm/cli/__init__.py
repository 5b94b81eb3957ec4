"""The command line: one typer app, and its output."""
