"""The real federation on NVIDIA FLARE 2.9: the only package that imports nvflare.

``app`` holds the two objects that a job starts (a site, the conductor), ``recipe`` packs a job, ``kits``
provisions a network and starts its processes, ``submit`` sends a job and waits for it.
"""
