"""The three parallel axes: the mesh, what is split over it, the schedules, ZeRO."""
