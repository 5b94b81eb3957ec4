"""The engine on several GPUs or CPU processes: every rank holds a runner and a part of the model, and executes the same steps.

    check.py        refuses options and models that cannot be split, before anything starts
    share.py        a rank's share of loading: its part of the model, its operations, a budget that all ranks agree on
    published.py    a Step as it is sent to other ranks
    rank_runner.py  the runner of a rank; rank 0's publishes every step that it executes
    watchdog.py     ends all ranks if the results of a step do not arrive
    serve.py        the loop of the other ranks: load, then execute the steps that rank 0 publishes
    start.py        starts the ranks and loads all of them
    launched.py     ranks started by a launcher: all run the same program, and meet in its calls
"""  # fmt: skip
