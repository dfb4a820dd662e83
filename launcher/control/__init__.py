"""How a sweep goes on, whoever carries it out.

advance    one step: see how trials stand, write down what is new, end what is not worth it, start more
loop       step after step, until the sweep has ended or a signal comes
workplace  the interface of the places where trials run
rules      from the configuration to the rules; `budget`, `admission` and `retries` are what they speak of
attempts   one attempt of a trial; `orders` are what people tell a sweep that is under way
progress   how a sweep says how it stands; `notify` tells a webhook
private_overrides  secrets of a command, for whoever goes on with its sweep, and for nobody else
"""
