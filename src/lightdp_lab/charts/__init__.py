"""Charts of the comparison (`compare`) and of the paper's cells (`results`)."""
