"""The final project of the course: five parts of an engine, written by the learner, that together generate text.

    parts.py         the exercises of the parts, and a folder's files as modules that use each other
    own_engine.py    the package's engine with these five parts, in the simulator
    check.py         `minllm check project FOLDER`: the five checks, then the engine in a child process, judged by the parent
    certificate.py   the page that a passed check writes into the folder
"""  # fmt: skip
