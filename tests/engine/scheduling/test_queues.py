"""Queues move sequences between their states; whatever the order of the moves, slots, blocks and counts add up."""

from hypothesis import given
from hypothesis import strategies as st

from minllm.errors import OutOfMemoryError
from tests.engine.scheduling.scripted_runner import check_books, check_nothing_is_left, scripted, small_engine

SLOTS = 3
MOVES = st.lists(st.tuples(st.sampled_from(["add", "enter", "preempt", "recompute", "end"]), st.integers(0, 99)), max_size=30)


def enter(queues):
    """Let the first waiting sequence in, as a scheduler does, with its whole prompt computed."""
    first = queues.first_waiting()
    if first is None or not queues.has_free_slot:
        return
    try:
        queues.preemption.restore(first, queues.memory)
    except OutOfMemoryError:
        return
    queues.run_first(first.num_tokens, first.num_tokens)
    queues.memory.commit(first)
    queues.fork_siblings(first)


@given(moves=MOVES, preemption=st.sampled_from(["recompute", "swap", "drop"]))
def test_moves_in_any_order_keep_the_books(moves, preemption):
    scheduler, _ = small_engine(blocks=6, seqs=SLOTS, preemption=preemption)
    queues, made = scheduler.queues, []
    for number, (move, which) in enumerate(moves):
        running = queues.running[which % len(queues.running)] if queues.running else None
        if move == "add":
            made += scripted(number, range(1 + which % 9), [1], 4, n=1 + which % 3, priority=which % 2)
            queues.add(made[-1 - which % 3])
        elif move == "enter":
            enter(queues)
        elif move == "end" and made:
            queues.abort(made[which % len(made)])
        elif move in ("preempt", "recompute") and running is not None:
            getattr(queues, move)(running)
            assert running not in queues.running
        check_books(queues)
        unfinished = [one for one in made if not one.is_finished]
        assert set(queues.sequences()) == set(unfinished) and len(queues.running) <= SLOTS
    assert {one.slot for one in queues.take_entered()} <= {one.slot for one in queues.running} and not queues.take_entered()
    ended = queues.take_ended()
    assert all(one.is_finished for one in ended) and (not ended or preemption == "drop")
    for one in made:
        queues.abort(one)
    check_nothing_is_left(scheduler, SLOTS)


def test_who_waits_enters_by_priority_then_arrival():
    queues = small_engine(blocks=8, seqs=8)[0].queues
    made = [scripted(number, range(2), [1], 2, priority=priority)[0] for number, priority in enumerate([1, 0, 1, -1])]
    for one in made:
        queues.add(one)
    order = []
    while (first := queues.first_waiting()) is not None:
        enter(queues)
        order.append(first)
    assert order == queues.running == [made[3], made[1], made[0], made[2]]
