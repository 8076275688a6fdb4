"""Checks for methods, ours and users' own.

from abps.checks import check_method
check_method(MyMethod())          # raises CheckFailure with one sentence, or returns the checks that passed
"""

from abps.checks.method_checks import CheckFailure as CheckFailure
from abps.checks.method_checks import check_method as check_method
from abps.checks.method_checks import quick_check as quick_check
