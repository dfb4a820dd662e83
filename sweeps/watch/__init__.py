"""The answers for somebody who watches a sweep.

glance      whether anything may have changed since a sweep was read, without reading it
age         how long a trial has waited or run
log_choice  whose log to read, and which of its files
"""
