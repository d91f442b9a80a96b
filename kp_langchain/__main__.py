"""`python -m kp_langchain`: the command `kp-langchain` if its script is not on the path."""

from kp_langchain.cli.app import main

if __name__ == "__main__":
    main()
