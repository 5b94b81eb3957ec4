"""The course's final project: five parts of an engine, written by the learner, that print text together.

    parts.py         which exercises they are, and a folder's files as modules that use each other
    own_engine.py    the package's engine with these five parts in it, in the simulator
    check.py         `minllm check project FOLDER`: the five checks, then the engine in a process of its own, judged by this one
    certificate.py   the page that a passed check leaves in the folder
"""
