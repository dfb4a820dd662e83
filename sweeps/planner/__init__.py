"""The search: every legal plan of a model on devices, priced on paper, and what to choose among them. No torch.

Read in this order:

request   from overrides to the spaces that are searched: usual batch and precision, memory left free
plans     a room: all legal plans of a space, as columns that are priced together
choosing  a room: which plan to take among them, by which objective, and why
points    what a sweep then measures
mixed     one job over several types of device, and what each of its assignments costs
"""
