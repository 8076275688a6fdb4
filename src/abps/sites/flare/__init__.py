"""A real federation on NVIDIA FLARE: kits and the authority, processes, jobs, rehearsals."""
