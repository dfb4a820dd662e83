"""What programs make of their command lines before the first step, without a GPU: run by their Python alone.

Standard input and the file that is named last are those of `launcher/command_trainer/parser_program.py`, whose path is
the first argument and whose parsers are asked first. Each call has the number of micro-batches and its files, too. What
asks for CUDA gets a CPU, and groups of ranks are torch's `fake` ones: rank 0, of whose peers there are none.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def module_named(name: str) -> Any:
    """A module of the program's own environment."""
    return importlib.import_module(name)


def parser_module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("parser_program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ScheduleBegunError(Exception):
    """A schedule has accepted what it was given, and would begin."""


@contextlib.contextmanager
def fake_ranks(torch: Any, world_size: int) -> Iterator[None]:
    """All ranks of the job as groups that send nothing; this process is rank 0."""
    fake = module_named("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", rank=0, world_size=world_size, store=fake.FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def without_cuda(torch: Any) -> None:
    """Have what is made on CUDA made on the CPU: on a machine without GPUs nothing else could be constructed."""
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.set_device = lambda *_: None

    class CpuStream(SimpleNamespace):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(wait_stream=lambda *_: None, record=lambda *_: None)

    torch.cuda.Stream = torch.cuda.Event = CpuStream
    torch.cuda.current_stream = torch.cuda.default_stream = CpuStream
    torch.cuda.synchronize = lambda *_: None
    plain_type = torch.Tensor.type

    def type_on_cuda(tensor: Any, *wanted: Any, **named: Any) -> Any:
        found = plain_type(tensor, *wanted, **named)
        return found if wanted or named else found.replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_on_cuda
    torch.Tensor.is_cuda = property(lambda _: True)  # offloading copies what is
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    for name in ("zeros", "empty", "ones", "tensor", "full"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, **named: Any) -> Any:
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        return make(*args, **named)

    return made


def megatron_modules() -> SimpleNamespace:
    """The modules of Megatron-LM that a start of its training goes through, on a CPU."""
    # Megatron-LM asks for Python 3.12, of which it needs this mark for readers alone.
    setattr(typing, "override", getattr(typing, "override", lambda method: method))  # noqa: B010
    torch = module_named("torch")
    without_cuda(torch)
    # Transformer Engine installs beside CUDA alone; plans are for machines that have it.
    module_named("megatron.core.utils")._te_version = module_named("packaging.version").Version("2.9")
    return SimpleNamespace(
        torch=torch,
        training=module_named("megatron.training.training"),
        variables=module_named("megatron.training.global_vars"),
        state=module_named("megatron.core").parallel_state,
        schedules=module_named("megatron.core.pipeline_parallel.schedules"),
        calculator=module_named("megatron.core.num_microbatches_calculator"),
        optimizers=module_named("megatron.core.optimizer"),
        replicas=module_named("megatron.core.distributed"),
        module=module_named("megatron.core.transformer.module"),
    )


def megatron_lm(parsers: Any) -> Any:
    """Megatron-LM's configurations of optimizer, replicas and micro-batches, its optimizer, schedules and rates."""
    modules = megatron_modules()

    class WholeMegatronLM(parsers.MegatronLM):  # type: ignore[misc]
        def check(self, call: dict[str, Any]) -> None:
            super().check(call)
            args = self.arguments.parse_args()
            self.arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
            config = self.arguments.core_transformer_config_from_args(args)
            modules.variables._GLOBAL_ARGS = args
            calculator = modules.calculator
            calculator.destroy_num_microbatches_calculator()
            calculator.init_num_microbatches_calculator(
                0, None, args.global_batch_size, args.micro_batch_size, args.data_parallel_size, False
            )
            assert calculator.get_num_microbatches() == call["num_micro_batches"]
            with fake_ranks(modules.torch, call["world_size"]):
                make_groups(modules.state, args)
                try:
                    start_megatron(modules, args, config)
                finally:
                    modules.state.destroy_model_parallel()

    return WholeMegatronLM()


def make_groups(state: Any, args: Any) -> None:
    state.initialize_model_parallel(
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        args.virtual_pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
        order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
        create_gloo_process_groups=False,
    )


def start_megatron(modules: SimpleNamespace, args: Any, config: Any) -> None:
    """Make the optimizer and its rates, and begin the schedule of several chunks."""
    of_optimizer, overrides = modules.training.get_megatron_optimizer_config(args)
    of_replicas = modules.training.get_megatron_ddp_config(args)
    chunks = [small_model(modules, config, args) for _ in range(args.virtual_pipeline_model_parallel_size or 1)]
    optimizer: Any = SimpleNamespace(param_groups=[{"params": list(chunks[0].parameters())}])
    if not args.use_megatron_fsdp:  # which asks for CUDA in each of its parts
        wrapped = [modules.replicas.DistributedDataParallel(config, of_replicas, chunk) for chunk in chunks]
        optimizer = modules.optimizers.get_megatron_optimizer(
            of_optimizer, wrapped, overrides, use_gloo_process_groups=False
        )
    rates = modules.training.get_optimizer_param_scheduler(optimizer)
    rates.step(args.global_batch_size)
    if args.virtual_pipeline_model_parallel_size:
        begin_interleaving(modules, args, chunks)


def small_model(modules: SimpleNamespace, config: Any, args: Any) -> Any:
    """As much of a model as optimizers look at: a matrix, a norm, and an expert where there are some."""
    torch, size, dtype = modules.torch, 64, args.params_dtype
    model = modules.module.MegatronModule(config=config)
    model.matrix = torch.nn.Parameter(torch.ones(size, size, dtype=dtype))
    model.norm = torch.nn.Parameter(torch.ones(size, dtype=dtype))
    if args.num_experts:
        model.expert = torch.nn.Parameter(torch.ones(size, size, dtype=dtype))
        model.expert.allreduce = args.expert_model_parallel_size == 1
    return model


def begin_interleaving(modules: SimpleNamespace, args: Any, chunks: list[Any]) -> None:
    """Begin the schedule, which looks at numbers of micro-batches first and then at the type of the model."""

    def stop(*_: Any) -> None:
        raise ScheduleBegunError

    schedules = modules.schedules
    schedules.get_model_type, begun = stop, schedules.get_model_type
    try:
        schedules.forward_backward_pipelining_with_interleaving(
            forward_step_func=None,
            data_iterator=[None for _ in chunks],
            model=chunks,
            num_microbatches=modules.calculator.get_num_microbatches(),
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
        )
    except ScheduleBegunError:
        pass
    finally:
        schedules.get_model_type = begun


def torchtitan(parsers: Any) -> Any:
    """torchtitan's own start of a training, on meta tensors: mesh, model, axes, schedule, optimizer and rates."""
    torch = module_named("torch")
    module_named("torch._utils")._get_available_device_type = lambda: "cpu"
    dims = module_named("torchtitan.distributed").ParallelDims
    specs = module_named("torchtitan.protocols.train_spec")
    utils = module_named("torchtitan.distributed.utils")

    class WholeTorchtitan(parsers.Torchtitan):  # type: ignore[misc]
        def check(self, call: dict[str, Any]) -> None:
            super().check(call)
            config = self.manager().parse_args(call["words"])
            config.optimizer.implementation = "for-loop"  # the others ask for a device
            with fake_ranks(torch, call["world_size"]):
                self.construct(config, call)

        def construct(self, config: Any, call: dict[str, Any]) -> None:
            axes = config.parallelism
            parallel = dims(
                dp_shard=axes.data_parallel_shard_degree,
                dp_replicate=axes.data_parallel_replicate_degree,
                cp=axes.context_parallel_degree,
                tp=axes.tensor_parallel_degree,
                pp=axes.pipeline_parallel_degree,
                ep=axes.expert_parallel_degree,
                etp=axes.expert_tensor_parallel_degree,
                world_size=call["world_size"],
            )
            parallel.build_mesh()
            spec = specs.get_train_spec(config.model.name)
            shape = spec.model_args[config.model.flavor]
            shape.update_from_config(config)
            with torch.device("meta"):
                model = spec.model_cls(shape)
            replicas = parallel.dp_replicate * parallel.dp_shard
            step = config.training.local_batch_size * replicas
            assert config.training.global_batch_size % step == 0, "global batch"
            loss = spec.build_loss_fn(config, parallel_dims=parallel)
            if parallel.pp_enabled:
                device = torch.device("cpu")
                _, parts, _, _ = spec.pipelining_fn(model, parallel, config, device, shape, spec.parallelize_fn, loss)
            else:
                parts = [spec.parallelize_fn(model, parallel, config)]
            optimizers = spec.build_optimizers_fn(parts, config.optimizer, parallel)
            rates = spec.build_lr_schedulers_fn(optimizers, config.lr_scheduler, config.training.steps)
            for scheduler in rates.schedulers:
                for number in {0, config.training.steps // 2, config.training.steps - 1}:
                    scheduler.lr_lambdas[0](number)
            # It says so in its log alone, and trains in another type than it was asked for.
            is_alone = not parallel.fsdp_enabled and (parallel.tp_enabled or parallel.pp_enabled)
            assert not is_alone or config.training.mixed_precision_param == "float32", "mixed precision is disabled"
            utils.maybe_enable_amp(parallel, config.training.mixed_precision_param, "cpu")

    return WholeTorchtitan()


def deepspeed(_: Any) -> Any:
    """DeepSpeed's configuration, which Hugging Face's Trainer fills in first where it holds `auto`, and its rates."""
    of_config = module_named("deepspeed.runtime.config").DeepSpeedConfig
    transformers = module_named("transformers")
    plugin = module_named("transformers.integrations.deepspeed")
    torch = module_named("torch")
    module_named("deepspeed.runtime.config").dist = SimpleNamespace(get_rank=lambda: 0)

    class WholeDeepSpeed:
        def check(self, call: dict[str, Any]) -> None:
            for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
                os.environ.pop(name)  # accelerate would look for the others
            content = json.loads(call["files"].get("deepspeed.json", "null"))
            if "--max_steps" in call["words"]:
                words = [word for word in call["words"] if word not in ("--use_cpu",)]
                content = self.filled(content, words, call)
            if content is not None:
                of_config(content, mpu=SimpleNamespace(get_data_parallel_world_size=lambda: call["num_replicas"]))

        def filled(self, content: Any, words: list[str], call: dict[str, Any]) -> Any:
            """Parse the Trainer's flags and make its rates; return DeepSpeed's configuration without `auto`, if any."""
            parser = transformers.HfArgumentParser(transformers.TrainingArguments)
            words = [word for word in words if word != "--deepspeed" and not word.endswith("deepspeed.json")]
            (args, _) = parser.parse_args_into_dataclasses([*words, "--use_cpu"], return_remaining_strings=True)
            optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=args.learning_rate)
            transformers.get_scheduler(
                args.lr_scheduler_type,
                optimizer,
                num_warmup_steps=args.get_warmup_steps(args.max_steps),
                num_training_steps=args.max_steps,
                scheduler_specific_kwargs=args.lr_scheduler_kwargs,
            )
            if content is None:
                return None
            config = plugin.HfTrainerDeepSpeedConfig(content)
            known = type(args).world_size
            type(args).world_size = property(lambda _: call["num_replicas"])
            try:
                config.trainer_config_process(args)
                config.trainer_config_finalize(args, SimpleNamespace(config=SimpleNamespace()), args.max_steps)
            finally:
                type(args).world_size = known
            return config.config

    return WholeDeepSpeed()


WHOLE: dict[str, Callable[[Any], Any]] = {"megatron-lm": megatron_lm, "torchtitan": torchtitan, "deepspeed": deepspeed}


def answer_to(parsers: Any, request: dict[str, Any]) -> dict[str, Any]:
    sys.path[0] = str(Path.cwd())
    try:
        program = WHOLE[request["parser"]](parsers)
    except Exception as error:
        return {"missing": f"{type(error).__name__}: {error}"}
    return {"refusals": [parsers.refusal_of(program, call) for call in request["calls"]]}


if __name__ == "__main__":
    parsing, answer = sys.argv[1:]
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        found = answer_to(parser_module(parsing), asked)
    Path(answer).write_text(json.dumps(found))
