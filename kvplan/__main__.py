"""`python -m kvplan` is the `kvplan` command."""

from kvplan.cli.main import main

if __name__ == "__main__":
    main()
