"""The engine whose threads are the lanes of NumPy vectors.

A vector holds one number for each thread of a block, or of several blocks that do not touch the same memory. The lane form of a kernel is
Python code over such vectors, generated from the kernel's syntax tree and the types and casts that minllm.sim.typing has found; its state,
with the mask of the lanes that run, is the first argument. A number that is the same for all lanes is a plain number.

    engine          runs a launch, or says why the threads must run it
    generate        statements of the lane form; regions: which assignments may overwrite all lanes
    expressions     arithmetic, conditions, calls; writer: their names, constants and casts
    masks           branches and loops; state: variables, expressions, barriers; memory: arrays
    arrays, windows arrays, and accesses of several bytes
    operations      casts, operators and functions; warps: shuffles and votes; PTX instructions: minllm.ptx.lanes
    fibres          sets of threads that wait for each other, and instructions that the simulator's threads execute
    watch           detectors as vector checks; accesses: races; carried: integers that may overflow
    fibre_watch     detectors of fibres; order: races on shared memory by clocks
    trace           requests of a trace, and its other counts

What has no lane form raises NotInLanes, what may be a mistake of the kernel Fault (faults). Then all memory gets its old contents back, and
the threads run the launch. So a check may be too strict, but must not miss what the threads' detectors report.
"""
