"""The command line of another program, made from the plan; and what its configuration must say."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.plan.experiment import Experiment
from conf.plan.trainer_call import JOB_NAMES, Call, call_of
from conf.types.trainer_spec import CostsOf
from costs import IMPLEMENTATIONS
from tests.composed import load
from tests.messages import refused

COMMAND = ["trainer=command", "trainer.command=[train.py]"]
IN_A_JOB = dict.fromkeys(JOB_NAMES, "0") | {"trial_folder": "/runs/a trial"}


def experiment_of(*overrides: str) -> Experiment:
    return load([*COMMAND, *overrides]).experiment()


def call(*overrides: str) -> Call:
    experiment = experiment_of(*overrides)
    return call_of(experiment.trainer, experiment, IN_A_JOB)


def test_values_of_the_plan_are_put_in() -> None:
    words = call("trainer.command=[train.py,'mb={batch.micro_batch_size}','{gradient_accumulation}']").words
    assert words == ("train.py", "mb=1", "8")


def test_a_command_may_be_a_text_that_is_split_before_values_are_put_in() -> None:
    words = call("trainer.command=train.py --out {trial_folder} 'two words'").words
    assert words == ("train.py", "--out", "/runs/a trial", "two words")


@pytest.mark.parametrize("value", ["; touch x", "$(id)", "`id`", "a\nb", "'", '"', "*", "a  b"])
def test_whatever_is_in_a_value_it_stays_one_word(value: str) -> None:
    experiment = experiment_of("+trainer.flags.path='{data.path}'")
    data = experiment.data.model_copy(update={"path": value})
    words = call_of(experiment.trainer, experiment.model_copy(update={"data": data}), IN_A_JOB).words
    assert words == ("train.py", "--path", value)


def test_flags_have_dashes_and_those_inside_a_mapping_dots() -> None:
    flags = "+trainer.flags={micro-batch-size:'{batch.micro_batch_size}',training:{steps:3},-v:true}"
    assert call(flags).words == ("train.py", "--micro-batch-size", "1", "--training.steps", "3", "-v")


def test_true_is_a_flag_alone_and_false_and_null_are_none() -> None:
    flags = "+trainer.flags={sp:'{parallel.sequence_parallel}',save:'{checkpoint.every_steps}',bf16:true,x:null}"
    assert call(flags).words == ("train.py", "--bf16")


def test_a_list_is_as_many_words() -> None:
    assert call("+trainer.flags={layers:'{layers_per_stage}',betas:[0.9,'{training.adam_beta2}']}").words == (
        *("train.py", "--layers", "4"),
        *("--betas", "0.9", "0.95"),
    )


def test_a_value_is_looked_up_by_what_the_plan_says() -> None:
    norm = "+trainer.values={norm:{of:model.family,to:{gpt:LayerNorm,llama:RMSNorm}}}"
    chunks = "+trainer.values.chunks={of:parallel.virtual_pipeline_size,to:{1:null},otherwise:'{layers_per_chunk}'}"
    assert call(norm, "+trainer.flags.norm='{norm}'").words == ("train.py", "--norm", "LayerNorm")
    assert call(chunks, "+trainer.flags.chunks='{chunks}'").words == ("train.py",)


def test_a_mapping_becomes_a_json_file_with_the_nulls_that_it_states_alone() -> None:
    stated = "{batch:'{batch.global_batch_size}',zero:{stage:'{parallel.zero_stage}'},clip:null,x:'a{world_size}'}"
    stated = f"{stated[:-1]},none:'{{checkpoint.load}}'}}"
    content = call(f"+trainer.files={{config.json:{stated}}}").files["config.json"]
    assert json.loads(content) == {"batch": 8, "zero": {"stage": 0}, "clip": None, "x": "a1"}


def test_ranks_are_known_where_every_device_has_a_process_of_its_own() -> None:
    assert call("trainer.start=srun", "+trainer.flags.rank='{rank}'").words[-1] == "0"
    with refused(ConfigError, "trainer.start"):
        call("+trainer.flags.rank='{rank}'")


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["trainer.command=[]"], "trainer.command"),
        (["trainer.command=3"], "trainer.command"),
        (["trainer.command='a \"b'"], "trainer.command"),
        (["trainer.command=['{batch.micro_batch}']"], "trainer.command[0]"),
        (["trainer.command=['{micro_batch_size}']"], "trainer.command[0]"),
        (["trainer.command=['{']"], "trainer.command[0]"),
        (["trainer.command=['{checkpoint.load}']"], "trainer.command[0]"),
        (["trainer.command=['a={checkpoint.load}']"], "trainer.command[0]"),
        (["+trainer.values.world_size={of:world_size,to:{}}"], "trainer.values"),
        (["+trainer.values.x={of:world,to:{}}"], "trainer.values.x.of"),
        (["trainer.flags.seed='{training.lr}'"], "trainer.flags.seed"),
        (["trainer.command=['{trainer.flags.-m}']"], "trainer.command[0]"),
        (["+trainer.values.x={of:world_size,to:{64:'{y}'}}"], "trainer.values.x.to.64"),
        (["+trainer.files={/etc/x:a}"], "trainer.files"),
        (["+trainer.environment={A-B:a}"], "trainer.environment"),
        (["trainer.log.patterns.step='('"], "trainer.log.patterns.step"),
        (["trainer.log.patterns.step='step'"], "trainer.log.patterns.step"),
        (["trainer.log.patterns.step='(?P<stp>x)'"], "trainer.log.patterns.step"),
        (["~trainer.log.patterns.step"], "trainer.log.patterns"),
        (["~trainer.log.patterns.seconds", "~trainer.log.patterns.milliseconds"], "trainer.log.patterns"),
        (["trainer.log.errors=['(']"], "trainer.log.errors[0]"),
        (["trainer.log.done='('"], "trainer.log.done"),
        (["+trainer.refuses=[{of:zero,because:no}]"], "trainer.refuses[0].of"),
    ],
)
def test_what_is_wrong_is_named_before_anything_runs(overrides: list[str], key: str) -> None:
    with refused(ConfigError, key):
        experiment_of(*overrides)


def test_a_plan_that_the_program_cannot_carry_out_cannot_exist() -> None:
    refuses = "+trainer.refuses=[{of:parallel.zero_stage,values:[2,3],because:it shards nothing but the optimizer}]"
    assert experiment_of(refuses)
    with refused(InfeasiblePlan, "parallel.zero_stage"):
        experiment_of(refuses, "parallel.zero_stage=2")


def test_what_only_our_own_trainer_cannot_run_is_no_matter() -> None:
    caught = ["training.compile_layers=true", "training.dropout=0.1"]
    with pytest.raises(InfeasiblePlan):
        load(caught).experiment()
    assert experiment_of(*caught)


@pytest.mark.slow
def test_the_fingerprint_covers_the_program_and_not_what_is_said_of_it() -> None:
    known = experiment_of().fingerprint
    assert known != load().experiment().fingerprint
    assert experiment_of("trainer.name=other").fingerprint != known
    assert experiment_of("trainer.command=[other.py]").fingerprint != known
    assert experiment_of("+trainer.flags.x=1").fingerprint != known
    assert experiment_of("trainer.costs_of=fsdp").fingerprint == known
    assert experiment_of("+trainer.differs=[{of:world_size,because:x}]").fingerprint == known


def test_a_trainer_comes_back_from_its_file_as_it_was() -> None:
    experiment = experiment_of("+trainer.values.x={of:world_size,to:{1:null}}", "+trainer.flags={a:{b:[1,x]}}")
    again = Experiment.model_validate_json(experiment.model_dump_json())
    assert again == experiment
    assert again.fingerprint == experiment.fingerprint


def test_of_our_own_trainer_only_the_kind_is_stored() -> None:
    assert load().experiment().model_dump()["trainer"] == {"kind": "trisweep"}


def test_the_costs_that_a_prediction_can_take_are_those_of_the_cost_model() -> None:
    assert set(get_args(CostsOf)) == set(IMPLEMENTATIONS)
