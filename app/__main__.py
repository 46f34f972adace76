"""`python -m app` is the same as `midstream`."""

from app.cli import main

main(prog_name="midstream")
