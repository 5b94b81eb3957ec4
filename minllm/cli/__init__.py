"""The command line: one typer app, and what it prints."""
