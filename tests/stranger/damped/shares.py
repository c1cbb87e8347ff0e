def way(here, there, share):
    """`share` of the way from one dictionary of weights to another; counters are taken over."""
    return {n: here[n] + share * (there[n] - here[n]) if there[n].is_floating_point() else there[n] for n in here}
