"""`python -m hvd_trainer` is `hvd-trainer`."""

from hvd_trainer.cli.main import main

if __name__ == "__main__":
    main(prog_name="hvd-trainer")
