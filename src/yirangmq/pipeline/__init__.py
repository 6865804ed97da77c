"""The data pipeline on Spark: a data source and sink, steps for DataFrames, and jobs. Needs the extra ``spark``."""
