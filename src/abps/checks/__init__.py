"""Checks for methods and codecs, ours and anybody's: importable, with failures that can be read.

from abps.checks import check_method, check_codec
check_method(MyMethod())          # raises CheckFailed with one sentence, or returns the checks that passed
"""

from abps.checks.codec_checks import check_codec as check_codec
from abps.checks.failure import CheckFailed as CheckFailed
from abps.checks.method_checks import check_method as check_method
from abps.checks.method_checks import glance as glance
