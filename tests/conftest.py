"""What all tests share."""

from hypothesis import settings

# Machines differ and are shared: no test may fail because a single example was slow. The same examples
# every time: a red build must be red again when somebody looks into it.
settings.register_profile("abps", deadline=None, derandomize=True)
settings.load_profile("abps")
