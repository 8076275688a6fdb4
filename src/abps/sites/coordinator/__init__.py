"""The part that runs at the relay: the scheduler of a job, and the server of star methods."""
