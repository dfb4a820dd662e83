"""How many jobs a search needs until one of them is near the best, beside other searches."""
