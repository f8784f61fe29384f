"""`python -m meshmsg` is the command `meshmsg`."""

from meshmsg._command import main

if __name__ == "__main__":
    main()
