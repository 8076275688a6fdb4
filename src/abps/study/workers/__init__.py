"""Where runs of a study are computed: processes of this machine, or a Slurm cluster."""
