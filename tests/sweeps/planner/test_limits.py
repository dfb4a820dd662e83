"""What is too large to search is refused before it is searched."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.types.schema import MOST_SEQUENCES
from sweeps.planner.plans.space import MOST_TYPES, require_few_types
from sweeps.planner.request import search_request
from sweeps.points.plan import plan_sweep
from tests.composed import composed
from tests.messages import refused

ON_SELENE = ["model=gpt-22b", "cluster=selene", "precision=bf16"]


def test_a_batch_of_more_sequences_than_a_search_takes_is_refused() -> None:
    assert search_request(composed([*ON_SELENE, f"batch.global_batch_size={MOST_SEQUENCES}"])).spaces
    with refused(ConfigError, "batch.global_batch_size"):
        search_request(composed([*ON_SELENE, f"batch.global_batch_size={2**40}"]))


@pytest.mark.parametrize("key", ["batch.global_batch_size", "batch.micro_batch_size", "cluster.num_nodes"])
def test_a_number_that_no_machine_word_holds_is_one_message(key: str) -> None:
    """It comes from a key that got stuck; numpy would answer with a traceback."""
    with refused(ConfigError, key):
        plan_sweep(composed(["sweep=175b", f"{key}={10**24}"]), proxy=False, git_sha="")


def test_a_pinned_micro_batch_or_a_model_that_cannot_be_priced_is_refused() -> None:
    huge = [f"batch.global_batch_size={2**29}", f"batch.micro_batch_size={2**29}"]
    with refused(ConfigError, "batch.micro_batch_size"):
        search_request(composed([*ON_SELENE, *huge]))
    with refused(ConfigError, "model.hidden_size"):
        search_request(composed([*ON_SELENE, "model.hidden_size=614400000000"]))


def test_more_types_in_one_job_than_a_search_goes_through_are_refused() -> None:
    clusters = ["selene", "dgx-h100", "dgx-h200", "jupiter"]
    require_few_types(clusters[:MOST_TYPES])
    with refused(ConfigError, "--mixed"):
        require_few_types(clusters)
