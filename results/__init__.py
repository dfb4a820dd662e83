"""What came of a sweep: collect, scaling efficiency, published figures, MLflow and the report. Reads folders only."""
