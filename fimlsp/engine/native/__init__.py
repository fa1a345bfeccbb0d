"""The one seam over the C libraries; each package is imported by exactly one file here."""
