"""Strategies are pure: a view goes in, a plan comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.errors import BadRequest
from sandlot.spec import Spec
from sandlot.strategies import Holding, Lease, Plan, View, fixed, look_ahead, none

A, B, C, D = (Spec(image=f"dir:/{letter}", memory="100MiB") for letter in "abcd")


def view(holdings: Mapping[Spec, Holding] | None = None, expected: str = "", **more: object) -> View:
    specs = {"a": A, "b": B, "c": C, "d": D}
    sequence = tuple(specs[letter] for letter in expected)
    given_ = {"now_s": 100.0, "remaining": Counter(sequence), "slots": 8, "slots_free": 8, "lease_s": 10.0} | more
    return View(holdings=holdings or {}, expected=sequence, **given_)  # type: ignore[arg-type]


def test_none_lets_everything_go() -> None:
    """Whatever is parked goes, and nothing is created."""
    assert none(view({A: Holding(idle=2), B: Holding(coming=1)}, "aabb")) == Plan(evict=(A, A))


def test_fixed_fills_up_and_cuts_down() -> None:
    """What is coming counts as there; specs that are not named go."""
    plan = fixed({A: 3, B: 1})(view({A: Holding(idle=1, coming=1), B: Holding(idle=2), C: Holding(idle=1)}))
    assert plan == Plan(evict=(B, C), warm=(A,))


def test_fixed_never_evicts_what_is_not_parked() -> None:
    """Too many on the way cannot be parked away yet."""
    assert fixed({A: 0})(view({A: Holding(coming=3)})) == Plan()
    assert fixed({A: 1})(view({A: Holding(idle=1, coming=3)})) == Plan(evict=(A,))


def test_fixed_refuses_negative_counts() -> None:
    """The caller's fault shows when the strategy is made."""
    with pytest.raises(BadRequest):
        fixed({A: -1})


def test_look_ahead_warms_the_first_tasks() -> None:
    """With nothing in use, all that start at once are due, in order, and no more than the rehearsal needs."""
    plan = look_ahead(concurrency=2)(view({A: Holding(create_s=1), B: Holding(create_s=1)}, "abab"))
    assert plan == Plan(warm=(A, B))


def test_look_ahead_counts_on_what_comes_back() -> None:
    """A group of one spec longer than the concurrency is served by its own returns."""
    assert look_ahead(concurrency=2)(view({A: Holding(create_s=1)}, "aaaaaaaa")) == Plan(warm=(A, A))


def test_look_ahead_begins_in_time_and_not_before() -> None:
    """A spec that takes long to create is begun earlier; one that is quick waits for its time."""
    leases = (Lease(A, since_s=97.0), Lease(A, since_s=97.0))  # they end at 107
    soon = look_ahead(concurrency=2, margin=1.0)
    assert soon(view({B: Holding(create_s=1)}, "bb", leases=leases)) == Plan()
    assert soon(view({B: Holding(create_s=8)}, "bb", leases=leases)) == Plan(warm=(B, B))


def test_look_ahead_evicts_what_no_task_needs() -> None:
    """Also when there is room: it holds memory for nothing."""
    assert look_ahead(concurrency=1)(view({A: Holding(idle=1), B: Holding(idle=2)}, "a")) == Plan(evict=(B, B))


def test_look_ahead_evicts_what_is_needed_latest() -> None:
    """Without room the parked sandbox whose turn is furthest makes way, for one whose turn is sooner."""
    holdings = {B: Holding(idle=1), C: Holding(idle=1), A: Holding(create_s=1)}
    plan = look_ahead(concurrency=3)(view(holdings, "abc", slots=2, slots_free=0))
    assert plan == Plan(evict=(C,), warm=(A,))


def test_look_ahead_does_not_evict_for_something_later() -> None:
    """What is parked and needed sooner stays."""
    holdings = {A: Holding(idle=1), B: Holding(create_s=1)}
    assert look_ahead(concurrency=2)(view(holdings, "ab", slots=1, slots_free=0)) == Plan()


def test_look_ahead_keeps_to_the_memory() -> None:
    """Creations stop where memory ends."""
    plan = look_ahead(concurrency=4)(view({}, "abcd", memory_free=250 * 2**20))
    assert plan == Plan(warm=(A, B))


def test_look_ahead_leaves_an_unknown_future_alone() -> None:
    """With nothing announced it neither warms nor evicts."""
    assert look_ahead(concurrency=4)(view({A: Holding(idle=3)}, remaining=None)) == Plan()


def test_look_ahead_refuses_what_makes_no_sense() -> None:
    """No concurrency, or beginning after the turn."""
    with pytest.raises(BadRequest):
        look_ahead(concurrency=0)
    with pytest.raises(BadRequest):
        look_ahead(concurrency=1, margin=0.5)


holdings = st.dictionaries(
    st.sampled_from([A, B, C, D]),
    st.builds(Holding, st.integers(0, 3), st.integers(0, 3), st.none() | st.floats(0.001, 100)),
)
views = st.builds(
    lambda held, expected, extra, leases, free, memory: View(
        now_s=100.0,
        holdings=held,
        leases=tuple(sorted(leases, key=lambda lease: lease.since_s)),
        expected=tuple(expected),
        remaining=Counter(expected) + Counter(extra),
        lease_s=5.0,
        slots=20,
        slots_free=free,
        memory_free=memory,
    ),
    holdings,
    st.lists(st.sampled_from([A, B, C, D]), max_size=30),
    st.lists(st.sampled_from([A, B, C, D]), max_size=3),
    st.lists(st.builds(Lease, st.sampled_from([A, B, C, D]), st.floats(0, 100)), max_size=5),
    st.integers(0, 8),
    st.none() | st.integers(0, 2**30),
)


@given(views, st.integers(1, 8))
def test_look_ahead_always_keeps_within_bounds(seen: View, concurrency: int) -> None:
    """It evicts only what is parked, creates only what is expected, and never more than there is or will be room for."""
    plan = look_ahead(concurrency=concurrency)(seen)
    evicted, warmed = Counter(plan.evict), Counter(plan.warm)
    assert all(n <= seen.holdings[spec].idle for spec, n in evicted.items())
    assert all(n <= Counter(seen.expected)[spec] for spec, n in warmed.items())
    assert len(plan.warm) <= seen.slots_free + len(plan.evict)
    if seen.memory_free is not None:
        used = sum(spec.memory_bytes or 0 for spec in plan.warm) - sum(spec.memory_bytes or 0 for spec in plan.evict)
        assert used <= max(seen.memory_free, 0)


@given(views, st.integers(1, 8))
def test_look_ahead_is_at_rest_once_it_got_what_it_wanted(seen: View, concurrency: int) -> None:
    """Carrying out a plan and asking again brings no further eviction: it does not go round in circles."""
    strategy = look_ahead(concurrency=concurrency)
    plan = strategy(seen)
    held = {spec: seen.holdings.get(spec, Holding()) for spec in {*seen.holdings, *plan.warm}}
    evicted, warmed = Counter(plan.evict), Counter(plan.warm)
    after = {s: Holding(h.idle - evicted[s], h.coming + warmed[s], h.create_s) for s, h in held.items()}
    memory = seen.memory_free
    if memory is not None:
        memory += sum(s.memory_bytes or 0 for s in plan.evict) - sum(s.memory_bytes or 0 for s in plan.warm)
    free = seen.slots_free + len(plan.evict) - len(plan.warm)
    again = View(
        now_s=seen.now_s, holdings=after, leases=seen.leases, expected=seen.expected, remaining=seen.remaining,
        lease_s=seen.lease_s, slots=seen.slots, slots_free=free, memory_free=memory,
    )  # fmt: skip
    assert strategy(again).evict == ()


# --- sharing ----------------------------------------------------------------------------------------------------------
SHORT = {"lease_s": 0.1, "slots": 2, "slots_free": 2}


def held(reset_s: float | None = 0.1, **more: int | float) -> Holding:
    return Holding(create_s=1.0, reset_s=reset_s, **more)  # type: ignore[arg-type]


def test_requests_of_one_spec_take_turns_where_others_need_the_room() -> None:
    """A turn is short against a creation, and both specs come soon: one of each serves all four."""
    plan = look_ahead(concurrency=4)(view({A: held(), B: held()}, "aaaabbbb", **SHORT))
    assert (plan.enough, plan.warm) == ({A: 1, B: 1}, (A, B))


def test_room_that_nobody_else_needs_is_used() -> None:
    """One spec alone: each request that runs at once has a sandbox of its own."""
    plan = look_ahead(concurrency=4)(view({A: held()}, "aaaaaaaa", **SHORT | {"slots": 4, "slots_free": 4}))
    assert (plan.enough, plan.warm) == ({}, (A, A, A, A))


def test_long_leases_are_not_waited_for() -> None:
    """To create one is quicker than to wait for another's end."""
    plan = look_ahead(concurrency=4)(view({A: held(), B: held()}, "aaaabbbb", **SHORT | {"lease_s": 5.0}))
    assert plan.enough == {}


def test_what_cannot_be_reset_is_not_shared() -> None:
    """Each request needs one of its own anyway, so to wait for another's end would only be late."""
    plan = look_ahead(concurrency=4)(view({A: held(reset_s=None), B: held()}, "aaaabbbb", **SHORT))
    assert (plan.enough, plan.keep) == ({B: 1}, {})


def test_whoever_has_waited_for_long_waits_for_no_other_any_more() -> None:
    """Some lease lasts longer than leases do."""
    fresh = look_ahead(concurrency=4)(view({A: held(waiting=1, waits_s=2.1), B: held()}, "bbbb", **SHORT))
    tired = look_ahead(concurrency=4)(view({A: held(waiting=1, waits_s=2.3), B: held()}, "bbbb", **SHORT))
    assert (fresh.enough, tired.enough) == ({A: 1, B: 1}, {B: 1})


def test_what_the_next_requests_need_is_never_given_up_for_a_later_one() -> None:
    """Nor for one of themselves: it would have to be made again at once."""
    holdings = {A: held(), B: held(idle=1), C: held(idle=1)}
    seen = view(holdings, "abcd", **SHORT | {"slots": 3, "slots_free": 0})
    plan = look_ahead(concurrency=3)(seen)
    assert (plan.evict, plan.keep) == ((), {A: 1, B: 1, C: 1})
    assert look_ahead(concurrency=2)(seen).evict == (C,)


def test_requests_that_wait_hold_their_turns() -> None:
    """Those to come begin after them, and not now."""
    holdings = {A: held(promised=2, waiting=2), B: Holding(create_s=0.1)}
    assert look_ahead(concurrency=2, margin=1.0)(view(holdings, "bb")).warm == ()
