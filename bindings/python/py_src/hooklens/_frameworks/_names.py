"""Names of element types."""

FULL = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
