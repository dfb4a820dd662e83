"""The settings that differ from site to site: Slurm's, for nodes, and MLflow's, for where runs are tracked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from conf.credentials import without_credentials
from conf.errors import ConfigError
from conf.types.durations import Minutes
from conf.types.sbatch_options import free_options, require_free_srun_options, sbatch_table
from conf.types.schema import Count, Frozen, Positive, Printed, Text


def _joined(value: object) -> object:
    """A list where Slurm wants a text: its parts, with the commas that Slurm puts between them."""
    if isinstance(value, list | tuple) and all(isinstance(part, str | int) for part in value):
        return ",".join(map(str, value))
    return value


def _own_names(options: dict[str, str | int | bool], info: ValidationInfo) -> dict[str, str | int | bool]:
    if info.data.get("scheduler") == "pbs":  # whose options are those of qsub
        return {name.lstrip("-"): value for name, value in options.items()}
    return free_options(options, beside="slurm." if "scheduler" in info.data else "the component's ")


Listed = Annotated[Text, BeforeValidator(_joined)]
SbatchOptions = Annotated[dict[str, Annotated[str | int | bool, BeforeValidator(_joined)]], AfterValidator(_own_names)]


class SlurmComponent(Frozen):
    """A mixed job's settings for one type of nodes; null keeps the machine's setting.

    Attributes:
        partition, account, qos, constraint, gpu_request, gpu_type, cpus_per_task, extra_sbatch: as in `slurm`.
    """

    partition: Listed | None = None
    account: Text | None = None
    qos: Text | None = None
    constraint: Text | None = None
    gpu_request: Literal["gpus-per-node", "gres", "none"] | None = None
    gpu_type: Text | None = None
    cpus_per_task: Count | None = None
    extra_sbatch: SbatchOptions | None = None


class SlurmSpec(Frozen):
    """Site settings of one Slurm machine.

    Attributes:
        partition: sbatch's --partition; null takes the site's default, as for the next two.
        account: sbatch's --account.
        qos: sbatch's --qos.
        time_limit_minutes: of each job; a text is a time as sbatch takes it, such as `12:00:00` or `1-12`.
        constraint: features that the nodes must have; null asks for none.
        cpus_per_task: cores of one rank; null leaves it to Slurm.
        gpu_request: how devices are asked for: `gpus-per-node`, `gres` (`gpu:N`) or `none` (whole nodes).
        scheduler: `pbs` submits trials and controllers with qsub: partition becomes its queue, account its project.
        pbs_mpiexec: the words that start the ranks of a PBS job, with `{ranks}` and `{ranks_per_node}`.
        pbs_resources: further resources of a request to PBS, such as `filesystems=home`.
        gpu_type: Slurm's name of the type of device to ask for, such as `a100`; null takes any.
        components: what differs for single clusters of a mixed job, by the cluster's name.
        max_array_size: the most elements of one job array; null asks `scontrol show config`.
        array_parallelism: the most elements of an array that run at once (`%N`).
        setup: shell lines before srun (modules, environments).
        srun_args: further options of srun.
        environment: variables of the job.
        container: the runtime in which the Python of a job runs; `none` runs it on the node.
        container_image: a file or folder of that runtime; the program's own name for an image with pyxis.
        container_mounts: folders that are seen inside, `HOST` or `HOST:INSIDE`; `output_dir` always is.
        container_gpus: the maker whose driver's libraries come into the container; null takes the cluster's devices'.
        container_prefix: words before the Python of the job, for a runtime that `container` does not know.
        python: the interpreter on the compute nodes; null means the one that submits, or `python3` in a container.
        extra_sbatch: further options of sbatch, by any of their names; of qsub with `pbs`.
        max_resubmits: how often a trial that lost its node or its place is submitted again.
        preflight: every rank of a trial's job first looks at its node for some seconds; a node that is not fit gets no
            trial of the sweep, and the trial other nodes.
        poll_seconds: `status` and `metrics` take an answer of Slurm's that is no older than this; a sweep goes by
            `controller.poll_seconds`.
    """

    scheduler: Literal["slurm", "pbs"] = "slurm"  # first, as the meaning of other keys depends on it
    partition: Listed | None
    account: Text | None
    qos: Text | None
    time_limit_minutes: Minutes
    constraint: Text | None
    gpu_request: Literal["gpus-per-node", "gres", "none"]
    cpus_per_task: Count | None
    max_array_size: Count | None
    array_parallelism: Count
    setup: Annotated[tuple[str, ...], Field(strict=False)]
    srun_args: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(require_free_srun_options)]
    container_prefix: str | None
    python: str | None
    environment: dict[str, Printed]
    extra_sbatch: SbatchOptions
    max_resubmits: Annotated[int, Field(ge=0)]
    poll_seconds: Positive = 5.0
    container: Literal["none", "apptainer", "singularity", "charliecloud", "enroot", "pyxis"] = "none"
    container_image: str | None = None
    container_mounts: Annotated[tuple[str, ...], Field(strict=False)] = ()
    container_gpus: Literal["nvidia", "amd"] | None = None
    preflight: bool = False
    pbs_mpiexec: str = "mpiexec -n {ranks} -ppn {ranks_per_node}"
    pbs_resources: Annotated[tuple[str, ...], Field(strict=False)] = ()
    gpu_type: Text | None = None
    components: dict[str, SlurmComponent] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _container_has_image(self) -> SlurmSpec:
        if self.container == "none":
            if self.container_image:
                problem = "names an image, and no runtime to run it"
                raise ConfigError("slurm.container_image", self.container_image, problem, "Set slurm.container too.")
            return self
        if not self.container_image:
            remedy = "Set slurm.container_image, or slurm.container=none."
            raise ConfigError("slurm.container_image", self.container_image, f"{self.container} needs an image", remedy)
        if self.container_prefix:
            problem = f"is a second container around {self.container}'s"
            raise ConfigError("slurm.container_prefix", self.container_prefix, problem, "Leave out one of them.")
        return self

    def seeing(self, output_dir: Path, maker: Literal["nvidia", "amd"] | None) -> SlurmSpec:
        """The settings whose container sees the folder of the results, and the driver of the cluster's devices."""
        if self.container == "none":
            return self
        mounts = (str(output_dir.absolute()), *self.container_mounts)
        gpus = self.container_gpus or maker
        return self.model_copy(update={"container_mounts": mounts, "container_gpus": gpus})

    def outside_container(self) -> SlurmSpec:
        """The settings of a job that needs Slurm's own tools, and so runs on the node as the command itself did."""
        none = {"container": "none", "container_image": None, "container_prefix": None}
        is_inside = self.container != "none" or self.container_prefix
        return self.model_copy(update=none | {"python": None}) if is_inside else self

    def on(self, cluster: str) -> SlurmSpec:
        """The settings for the nodes of one cluster of a mixed job."""
        own = {key: value for key, value in self.components.get(cluster, SlurmComponent()) if value is not None}
        extra, rivals = own.get("extra_sbatch", {}), sbatch_table().rivals
        replaced = {rival for name in extra for rival in rivals.get(name, ())}
        kept = {name: value for name, value in self.extra_sbatch.items() if name not in replaced}
        return self.model_copy(update=own | {"extra_sbatch": kept | extra})


OF_CLOUD = re.compile(r"databricks(?:-uc)?(?:://\S*)?$|azureml://\S+$|arn:\S+$")
"""Tracking servers that MLflow or a plugin of it finds by itself: those of Databricks, Azure and SageMaker."""


class TrackingSpec(Frozen):
    """The store of MLflow's runs.

    Attributes:
        kind: `sqlite` keeps one file under the output folder; `database` writes into a database server, such as
            PostgreSQL, and keeps artifacts under the output folder; `server` sends both to an MLflow server.
        uri: of the database (`postgresql://user@host/name`) or the server (`https://host`); null for `sqlite`.
        experiment: MLflow's name for all runs together.
        live_seconds: how often a sweep that runs brings MLflow up to date; null does so only at its end.
        also: what else is written whenever MLflow is, into a folder of that name in each sweep's: `tensorboard`, event
            files; `wandb`, offline runs for `wandb sync`, once a command ends.
    """

    kind: Literal["sqlite", "database", "server"]
    uri: str | None
    experiment: str
    live_seconds: Positive | None = 30.0
    also: Annotated[tuple[Literal["tensorboard", "wandb"], ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _server_has_uri(self) -> TrackingSpec:
        if self.kind != "sqlite" and not self.uri:
            problem = f"a tracking {self.kind} needs an address"
            raise ConfigError("tracking.uri", self.uri, problem, "Give tracking.uri=URL.")
        return self

    def while_running(self) -> TrackingSpec:
        """The store for imports while a sweep runs: runs of wandb can only be written whole, and wait for the end."""
        return self.model_copy(update={"also": tuple(name for name in self.also if name != "wandb")})

    def without_credentials(self) -> TrackingSpec:
        """The store as records keep it, without a password in its address: others may read the records."""
        return self.model_copy(update={"uri": self.uri and without_credentials(self.uri)})

    def signed_in_as(self, configured: TrackingSpec) -> TrackingSpec:
        """A store read from a record, with the credentials of the configuration if that names the same store.

        What either wants written beside it is written.
        """
        same = configured.store_identity == self.store_identity
        also = tuple(dict.fromkeys((*self.also, *configured.also)))
        return (configured if same else self).model_copy(update={"also": also})

    @property
    def store_identity(self) -> tuple[str, str | None, str]:
        """The values that two settings of one store share."""
        return self.kind, self.uri and without_credentials(self.uri), self.experiment
