"""Models that come out: fitted on all rows, stored, checked on new tables, and described in a card."""
