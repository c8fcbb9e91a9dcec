"""`python -m pyrula.cli` is `pyrula`."""

from pyrula.cli import main

if __name__ == "__main__":
    main()
