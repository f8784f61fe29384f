"""A program that loads modules and prints the names of all that are loaded then.

    python tests/support/programs/loaded_modules.py MODULE...

It imports nothing else itself: with `python -S` there is nothing else.
"""

import sys


def main() -> None:
    for name in sys.argv[1:]:
        __import__(name)
    print(*sys.modules)


if __name__ == "__main__":
    main()
