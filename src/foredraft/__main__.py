"""`python -m foredraft` is the `foredraft` command."""

from foredraft.cli import main

if __name__ == "__main__":
    main()
