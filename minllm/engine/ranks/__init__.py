"""The engine on several GPUs or CPU processes: every rank holds a runner and a part of the model, and executes the same steps.

    check.py        what cannot be split, refused before anything starts
    share.py        what loading asks of a rank: its part of the model, its operations, a budget that all agree on
    published.py    a Step as it is sent to other ranks
    rank_runner.py  the runner of a rank; that of rank 0 publishes what it executes
    watchdog.py     ends all ranks if the results of a step do not come
    serve.py        what the other ranks run: load, then execute what rank 0 publishes
    start.py        start the ranks and load all of them
    launched.py     ranks that a launcher has started: all run the same program, and meet in its calls
"""
