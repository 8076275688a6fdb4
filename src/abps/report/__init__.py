"""What runs mean: statistics, words, tables, figures and pages."""
