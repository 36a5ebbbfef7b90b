"""`python -m fairlane` is the command `fairlane`."""

from __future__ import annotations

from fairlane.cli import main

if __name__ == "__main__":
    main()
