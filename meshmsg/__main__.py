"""`python -m meshmsg` is the command `meshmsg`."""

from meshmsg.cli import main

if __name__ == "__main__":
    main()
