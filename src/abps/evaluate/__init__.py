"""Measures of accuracy, calibration and clinical use, with their uncertainty."""
