"""The asynchronous engine as a pipeline of three threads: tokenise, compute, detokenise."""
