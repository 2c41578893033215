from __future__ import annotations

from e2e.cli import main

if __name__ == "__main__":
    main()
