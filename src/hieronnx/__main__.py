"""`python -m hieronnx`, the same as the `hieronnx` command."""

from hieronnx.cli import main

if __name__ == "__main__":
    main()
