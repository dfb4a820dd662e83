"""The texts of the files in a folder of one's own. Every number says where it is from, and what to correct."""

from __future__ import annotations

import json

from cli.commands.init.machine import DescribedMachine, option_taken
from conf.compose.plausible import PLACEHOLDER
from conf.units import count_of
from launcher.slurm.cluster import SlurmSite

MODEL, SWEEP = "my-model", "my-sweep"
FOLDER = "config"
TRIAL_MINUTES = 30

SITE = f"""\
# Read by every `trisweep` command that is given in this folder or below. Paths are relative to this file.
config_dirs: [{FOLDER}] # clusters, models, sweeps of your own; they come before those of the package
# output_dir: /scratch/me/runs # where jobs write: login and compute nodes share it. ./runs unless you say otherwise
"""

CLUSTER = """\
# {headline}
# Correct every number, or measure them: `trisweep calibrate cluster={name}` writes into this file.
defaults:
  - /device@device: {device} # {device_source}
{efficiency_default}  - _self_

name: {name}
num_nodes: {num_nodes} # that a job may take; {nodes_source}
devices_per_node: {devices_per_node} # {source}
cores_per_node: {cores} # on CPUs, the cores that the ranks of a node share
site: # for the energy and carbon of reports; null leaves them out
  grid_co2_grams_per_kwh: null # what your grid emits
  grid_co2_source: ""
  power_usage_effectiveness: null # what the whole site draws over what its computers draw
  power_usage_effectiveness_source: ""
gpu_names: [] # what tables call this device (`trisweep estimate`), if rows with it mean this cluster
efficiency: # what programs reach of the device's peaks
{efficiency}
reserved_memory_bytes: {reserved} # {reserved_source}
fragmentation: {fragmentation}
reserved_memory_source: as in cluster {similar}
links: # per device and direction, from the closest tier to the widest
{links}"""

DEVICE = """\
# {called}, as Slurm calls it. Nothing here describes it: write what its maker states over each number below.
# Where it is one of `trisweep list device`, name that in {cluster} instead.
name: {name}
kind: gpu
peak_flops_per_second: # dense; take out a type that it does not have
{peaks}
peak_source: {source}
memory_bytes: {memory} # of one device as Slurm counts them
memory_bandwidth_bytes_per_second: {bandwidth:.3e}
memory_source: {source} # write your own here, and the warning ends
num_multiprocessors: {multiprocessors} # SMs, or CUs
watts: {watts:g}
watts_source: {source}
price_per_hour: null # what one costs for an hour, in US dollars
price_source: ""
"""

LINK = """\
  - name: {name}
    num_devices: {num_devices}
    bandwidth_bytes_per_second: {bandwidth} # as in cluster {similar}: correct it
    latency_seconds: {latency} # likewise
"""

SLURM = """\
# How jobs on {name} are asked for. Taken without asking with cluster={name}, because it has the cluster's name.
defaults:
  - default # every key with its default: `trisweep show slurm=default`
  - _self_

partition: {partition}
account: null # {accounts}
qos: null
time_limit_minutes: {minutes} # of a trial{limit}
gpu_request: {request} # gpus-per-node, gres, or none where nodes are given whole
gpu_type: {gpu_type} # Slurm's name of the type of device; null takes any
setup: [] # shell lines before srun, such as - module load cuda
environment: {{}} # variables, such as NCCL_SOCKET_IFNAME: hsn0
cpus_per_task: {cores} # cores of one rank{cores_source}; null leaves most sites at one, too few for a GPU
extra_sbatch: # any other option of sbatch, such as exclusive: true
  mem: 0 # all memory of a node; a site's default is often some GB for each core, and ends jobs that need more
  requeue: true # Slurm runs a job again whose node failed; no-requeue: true leaves that to the next command
"""

MODEL_TEXT = """\
# A model of {size}, made up as an example.
# A shape that exists as a Hugging Face config.json is taken with model_from=PATH instead.
name: {name}
family: gpt # gpt: learned positions, LayerNorm; llama: rotary positions, RMSNorm
num_layers: {layers}
hidden_size: {hidden}
ffn_hidden_size: {ffn}
num_attention_heads: {heads}
num_query_groups: {heads} # fewer than heads: grouped-query attention
head_size: null # null: hidden_size over num_attention_heads
rotary_base: null # llama: 10000.0, say
rotary_scaling: null
norm_epsilon: 1.0e-5
qkv_bias: false # true: queries, keys and values of a Llama have biases, as in Qwen2
qk_norm: false # true: a Llama's queries and keys pass through norms, head by head, as in Qwen3
gated_mlp: false # llama: true
tied_embeddings: true
vocab_size: {vocab}
seq_length: {seq}
experts: null
latent_attention: null
"""

SWEEP_TEXT = """\
# @package _global_
# Which layout trains {model} fastest on {name}.
defaults:
  - override /model: {model}
  - override /cluster: {name}
  - override /precision: {precision}
  - override /data: synthetic
  - _self_

parallel:
  world_size: {world_size} # devices of every point; null takes the whole cluster
batch:
  global_batch_size: {batch} # sequences

sweep:
  name: {sweep}
  question: Which layout trains {model} fastest on {name}?
  baseline: {{}} # what all points are compared with: here the values of the configuration
  axes: # every combination is a point
    parallel.tensor_parallel_size: {tensor}
    batch.micro_batch_size: [1, 2]
  points: [] # further points, such as {{parallel.zero_stage: 1}}
  max_trials: 16
  published: []
  proxy: # what is measured on this very machine where no cluster is named
    overrides: [model=tiny, cluster=local, parallel=single, batch=proxy, precision=fp32, data=synthetic]
    time_limit_minutes: 5
    baseline: {{}}
    axes: {{}}
    points:
      - {{batch.micro_batch_size: 2}}
      - {{parallel.world_size: 2, parallel.tensor_parallel_size: 2}}
"""

BIG = {
    "size": "1.3 billion parameters",
    "layers": 24,
    "hidden": 2048,
    "ffn": 8192,
    "heads": 16,
    "vocab": 50304,
    "seq": 2048,
}
SMALL = {
    "size": "a few thousand parameters",
    "layers": 4,
    "hidden": 64,
    "ffn": 256,
    "heads": 4,
    "vocab": 256,
    "seq": 64,
}


def texts(machine: DescribedMachine, site: SlurmSite | None) -> dict[str, str]:
    unknown = {} if machine.is_known else {device_file(machine): _device(machine)}
    return {
        "trisweep.yaml": SITE,
        **unknown,
        f"{FOLDER}/cluster/{machine.name}.yaml": _cluster(machine),
        f"{FOLDER}/slurm/{machine.name}.yaml": _slurm(machine, site),
        f"{FOLDER}/model/{MODEL}.yaml": MODEL_TEXT.format(name=MODEL, **(BIG if machine.has_gpus else SMALL)),
        f"{FOLDER}/sweep/{SWEEP}.yaml": _sweep(machine),
    }


def device_file(machine: DescribedMachine) -> str:
    """The file of a device that nothing describes, from the folder of one's own."""
    return f"{FOLDER}/device/{machine.device}.yaml"


def precision_of(machine: DescribedMachine) -> str:
    """The option of group `precision` that its devices are for."""
    return "bf16" if "bf16" in machine.similar.device.peak_flops_per_second and machine.has_gpus else "fp32"


def _device(machine: DescribedMachine) -> str:
    other, called = machine.similar.device, machine.called
    return DEVICE.format(
        called=called,
        name=as_text(called.upper()),
        cluster=f"{FOLDER}/cluster/{machine.name}.yaml",
        source=as_text(f"{PLACEHOLDER}: fill in {device_file(machine)}"),
        peaks="\n".join(f"  {dtype}: {peak:.3e}" for dtype, peak in other.peak_flops_per_second.items()),
        memory=f"{other.memory_bytes:_}",
        bandwidth=other.memory_bandwidth_bytes_per_second,
        multiprocessors=other.num_multiprocessors,
        watts=other.watts,
    )


def as_text(value: str) -> str:
    """The value as YAML reads it back: quoted, because `3090`, `no` and `12:30` would be none."""
    return json.dumps(value, ensure_ascii=False)


def _cluster(machine: DescribedMachine) -> str:
    similar, offer = machine.similar, machine.offer
    named = option_taken(similar.name, "efficiency")
    links = [
        LINK.format(
            name=link.name,
            num_devices=link.num_devices,
            bandwidth=f"{link.bandwidth_bytes_per_second:.3e}",
            latency=f"{link.latency_seconds:.1e}",
            similar=similar.name,
        )
        for link in machine.links
    ]
    values = {
        "headline": f"{machine.name}: {count_of(machine.num_nodes, 'node')} of {machine.devices_per_node}"
        + f" x {machine.called}, "
        + f"{machine.source}.",
        "name": machine.name,
        "source": machine.source,
        "nodes_source": "by --nodes" if machine.has_stated_nodes else machine.source,
        "device": machine.device,
        "device_source": _device_source(machine),
        "efficiency_default": f"  - /efficiency@efficiency: {named}\n" if named else "",
        "efficiency": _efficiency(machine),
        "num_nodes": machine.num_nodes,
        "devices_per_node": machine.devices_per_node,
        "cores": "null" if machine.has_gpus or offer is None else offer.num_cores,
        "reserved": similar.reserved_memory_bytes,
        "reserved_source": "for framework and collectives",
        "fragmentation": similar.fragmentation,
        "similar": similar.name,
        "links": "".join(links),
    }
    return CLUSTER.format(**values)


def _device_source(machine: DescribedMachine) -> str:
    gpu_type = machine.offer.gpu_type if machine.offer else None
    if machine.offer is None or machine.is_like:
        return f"{machine.source}; `trisweep list device` has all"
    if not machine.has_gpus:
        return "Slurm knows of no GPU there"
    others = ", ".join(machine.device_candidates[:4])
    if not machine.is_known:
        return f"a file to fill in, as nothing describes {'it' if gpu_type is None else gpu_type}"
    return f"Slurm calls it {gpu_type}" + (f", which may also be {others}: check its memory" if others else "")


def _efficiency(machine: DescribedMachine) -> str:
    """The values that the similar cluster's file has of its own; a chip's file has the others."""
    efficiency = machine.similar.efficiency
    source = f"as in cluster {machine.similar.name}"
    if option_taken(machine.similar.name, "efficiency"):
        return f"  link: {efficiency.link}\n  link_source: {source}"
    names = ("matmul", "attention", "memory", "link", "kernel_seconds")
    return "\n".join([*(f"  {name}: {getattr(efficiency, name)}" for name in names), f"  source: {source}"])


def _slurm(machine: DescribedMachine, site: SlurmSite | None) -> str:
    offer = machine.offer
    accounts = sorted({account for account, *_ in site.associations}) if site else []
    most = offer.most_minutes if offer else None
    others = f" # or {', '.join(machine.others)}" if machine.others else ""
    return SLURM.format(
        name=machine.name,
        partition=f"{as_text(offer.partition)}{others}" if offer else "null # the site's default one",
        accounts=f"yours: {', '.join(accounts)}" if accounts else "your project, where the site asks for one",
        minutes=TRIAL_MINUTES if most is None else int(min(TRIAL_MINUTES, most)),
        limit="" if most is None else f"; the partition gives at most {most:g}",
        cores=max(1, offer.num_cores // machine.devices_per_node) if offer else "null",
        cores_source=f": {offer.num_cores} of a node by sinfo, fewer where the site keeps some" if offer else "",
        request="gpus-per-node" if machine.has_gpus else "none",
        gpu_type=as_text(offer.gpu_type) if offer and offer.gpu_type else "null",
    )


def _sweep(machine: DescribedMachine) -> str:
    per_node = machine.devices_per_node
    world_size = min(machine.num_devices, 2 * per_node)
    heads = int(str((BIG if machine.has_gpus else SMALL)["heads"]))
    tensor = [size for size in (1, 2, 4, 8) if per_node % size == 0 and heads % size == 0]
    return SWEEP_TEXT.format(
        name=machine.name,
        model=MODEL,
        sweep=SWEEP,
        precision=precision_of(machine),
        world_size=world_size,
        batch=16 * world_size,
        tensor=tensor,
    )
