"""Tables of a sweep: mean±std over seeds, the paper's layouts, comparisons, and their output formats."""
