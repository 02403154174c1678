"""``python -m dubio`` is the command ``dubio``."""

from dubio.cli import main

if __name__ == "__main__":
    main()
