"""Where nobody measured how many ports of a node a ring gets, a choice holds with one as well as with all."""

from __future__ import annotations

from dataclasses import replace

from costs import estimate
from sweeps.planner.choosing.choice import Candidate, choose_plans
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.plans.space import Space
from sweeps.planner.request import search_request
from tests.composed import composed, load_cluster

JOB = [
    *("model=llama-3.1-8b", "cluster=dgx-h100", "precision=bf16", "model.seq_length=8192"),
    *("batch.global_batch_size=32", "parallel.world_size=32", "model.num_layers=16"),
    *("parallel.schedule=1f1b", "parallel.context_parallel_size=1", "parallel.recompute_every=1"),
]
REQUEST = search_request(composed(JOB), implementation="megatron-core")


def best_of(space: Space) -> Candidate:
    return choose_plans([space], "time", Training(), 1).best[0]


def with_ports(space: Space, ports: int) -> Space:
    inside, network = space.setting.cluster.links
    links = (inside, network.model_copy(update={"ring_ports": ports}))
    cluster = space.setting.cluster.model_copy(update={"links": links})
    return replace(space, setting=replace(space.setting, cluster=cluster))


def seconds_with(candidate: Candidate, ports: int) -> float:
    cluster = with_ports(REQUEST.spaces[0], ports).setting.cluster
    setup = candidate.strategy.setup(REQUEST.settings.model_copy(update={"cluster": cluster}))
    return estimate(setup, candidate.space.setting.implementation).step_seconds


def test_the_plan_chosen_loses_little_with_one_port_and_its_price_is_as_declared() -> None:
    (space,) = REQUEST.spaces
    hedged, declared = best_of(space), best_of(replace(space, as_declared=True))
    assert hedged.step_seconds == seconds_with(hedged, 8)
    loss = seconds_with(hedged, 1) / seconds_with(declared, 1)
    assert loss <= 1
    assert hedged.step_seconds / declared.step_seconds - 1 <= 1 / loss - 1 + 0.05
    assert declared.hedged_seconds == declared.step_seconds < hedged.hedged_seconds


def test_where_the_ports_were_measured_plans_are_chosen_by_their_price() -> None:
    (space,) = REQUEST.spaces
    for ports in (1, 8):
        measured = with_ports(space, ports)
        assert measured.with_fewest_ports is None
        assert best_of(measured).hedged_seconds == best_of(measured).step_seconds


def test_ports_are_no_question_within_a_node_and_on_cpus() -> None:
    (space,) = REQUEST.spaces
    assert space.with_fewest_ports is not None
    assert replace(space, world_size=8).with_fewest_ports is None
    assert load_cluster("local").with_fewest_ports() is None
