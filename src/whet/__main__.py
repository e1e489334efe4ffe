"""`python -m whet`, for torchrun."""

from whet.cli.app import main

if __name__ == "__main__":
    main()
