"""`python -m app` is `midstream`."""

from app.cli import main

main(prog_name="midstream")
