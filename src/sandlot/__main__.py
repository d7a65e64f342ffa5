"""`python -m sandlot` is `sandlot`."""

from sandlot.cli.main import main

if __name__ == "__main__":
    main()
