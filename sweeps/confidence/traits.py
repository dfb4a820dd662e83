"""The traits of a plan beyond its sizes: a trainer none of whose rows has one was never validated with it."""

from __future__ import annotations

from conf.setup import Setup

TRAITS = {  # name, and how a sentence calls it
    "fp32": "fp32 products",
    "fp8": "fp8 products",
    "fp4": "fp4 products",
    "experts": "experts",
    "latent": "latent attention",
    "tensor-network": "tensor groups that reach over the network",
}


def traits_of(setup: Setup) -> tuple[str, ...]:
    """Return the members of TRAITS that the plan has. Nothing here tells products in bf16 and fp16 apart."""
    recipe = setup.precision.matmul_recipe
    has = {
        "fp32": recipe is None and setup.precision.dtype == "fp32",
        "fp8": recipe is not None and "fp8" in recipe,
        "fp4": recipe is not None and "fp4" in recipe,
        "experts": setup.model.experts is not None,
        "latent": setup.model.latent_attention is not None,
        "tensor-network": _leaves_fast_links(setup),
    }
    return tuple(name for name in TRAITS if has[name])


def _leaves_fast_links(setup: Setup) -> bool:
    """True if a tensor-parallel group has more devices than any link spans that is faster than the network."""
    inner = [link.num_devices for link in setup.cluster.links[:-1]]
    return bool(inner) and setup.parallel.tensor_parallel_size > max(inner)
