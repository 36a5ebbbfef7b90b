"""Endings, results and the dead as Parquet, for when Redis has deleted them."""
