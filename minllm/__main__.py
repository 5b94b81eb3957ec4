"""`python -m minllm`: the same as the command `minllm`."""

from minllm.cli.app import main

if __name__ == "__main__":
    main()
