"""`python -m midstream_server` is `midstream`."""

from app.cli import main

if __name__ == "__main__":
    main(prog_name="midstream")
