"""The report of a sweep: one self-contained HTML page, and its plots as PNG and PDF."""
