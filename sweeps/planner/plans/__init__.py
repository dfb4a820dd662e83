"""All legal plans of a model on devices, as columns that are priced together.

strategy     one plan as a value
space        the values of each knob, given those before it, padding
runnable     the choices that a trainer can run, and the spreads of layers over stages
blocks       all plans of one number of devices, as columns that numpy broadcasts; `shard_work` is priced once for all
bounds       times and bytes that no plan of a family undercuts
whole_space  one space whole: what fits, the fastest, and the best of each family; times only what `bounds` leave

A family is all plans of the same `space.Family` on one number of devices of one cluster. A knob of a plan lives in one
of four places: `space.Sizes`, `space.ShardChoice` (what a layer's price depends on) or `runnable.StageLayout`, all
three columns of `Plans`, or `space.Placing`, which is part of the `Setting`.

A further knob is a column of `Plans`, a function of its values in `space`, an axis in `blocks`, and no more than the
least of its costs in `bounds`. If a layer's price depends on it, it is a field of
`Shard` too, and an axis of `shard_work.ShardWork`.
plainness     what departs from the plans that people run, and what that counts
"""
