"""What the engine's processes are spared: a thread for every message that is to be forgotten later."""

import threading


def test_many_things_are_done_later_by_one_thread():
    from abps.sites.flare.economy import Later

    later, done, all_done = Later(), [], threading.Event()
    before = threading.active_count()
    never = later.after(0.01, lambda: done.append("never"))
    never.cancel()
    later.after(0.03, lambda: 1 / 0)  # the others are done all the same
    for k in range(200):
        later.after(0.05 - k * 1e-4, lambda k=k: done.append(k))
    later.after(60.0, lambda: done.append("much later"))
    later.after(0.2, all_done.set)
    assert threading.active_count() <= before + 1
    assert all_done.wait(30.0)
    assert sorted(done) == list(range(200))
