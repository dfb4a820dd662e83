"""What a device and its links really do, measured by all ranks of a job at once: the input of a calibration."""
